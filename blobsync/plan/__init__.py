"""Plans transfers: decides what will be done before anything is touched.

It chooses each file's action with its reason (``decisions``, a table) and the engine (``engine_model``), handles
several names of one file, and refuses unsafe plans. In: PATHs, options, a listing of both ends (``survey``). Out: a
``TransferPlan``, which can be printed, saved and compared. Calls ``base``, ``config``, ``local`` and ``store``.

Each PATH becomes a ``Part``: ``path_mapping`` creates it, the survey lists its files, ``ProjectContext.opened`` adds
its stores, and ``transfer`` moves the files and records the results.
"""
