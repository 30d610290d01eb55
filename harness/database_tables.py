"""Every module that declares tables of a results database, imported so that `Base.metadata` holds them all.

To add tables: a module `database_<what>.py` with classes on `leadline.database_schema.Base`, its name in the import
below, and nothing else. A new file is created with them; a file that lacks them gets them when it is next opened for
writing; a reader asks `Results.has(table)` first, because a file that was never written to since may be without.
"""

from __future__ import annotations

from leadline import database_decode, database_fidelity, database_ruler, database_selection, database_shared
from leadline.database_schema import Base

__all__ = ["Base", "database_decode", "database_fidelity", "database_ruler", "database_selection", "database_shared"]
