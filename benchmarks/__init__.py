"""Measures blobsync beside azcopy, rclone, the Azure SDK and obstore; ``run.py`` is the command."""
