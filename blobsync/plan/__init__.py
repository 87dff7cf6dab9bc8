"""Plans transfers: decides what will be done before anything is touched.

Decides each file's action and its reason (``decisions``, a table), which engine carries it (``engine_model``), what two
names of one file mean, and what is refused. In: PATHs, options, one look at both ends (``survey``). Out: a
``TransferPlan``, which can be printed, saved and compared. Calls ``base``, ``config``, ``local`` and ``store``.

One ``Part`` for each PATH goes all the way: ``path_mapping`` makes it, the survey tells what is in it,
``ProjectContext.opened`` gives it its stores, and ``transfer`` moves it and keeps its account.
"""
