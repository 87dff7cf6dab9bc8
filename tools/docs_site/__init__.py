"""The documentation site: the pages of ``docs/`` in four kinds, and reference pages made from the code.

``./dev docs`` builds it into ``build/docs``. Warnings are errors, among them a page without a place and a link to
nothing.
"""
