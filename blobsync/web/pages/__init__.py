"""The pages. Each module lists its routes in ``ROUTES``; here they all are."""

from blobsync.web.pages import browse, clusters, jobs, new_job, plans, project, transfers

ROUTES = tuple(one for each in (browse, clusters, jobs, new_job, plans, project, transfers) for one in each.ROUTES)
