"""Stores from stores: some of the episodes or columns, several stores as one, other compression; and tags.

All but `tag` write a new store beside its place, which is moved there when it is whole, and leave their sources as they are. A
run that was killed is finished by the same call.
"""

from diskbuffer.editing.copying import copy, delete
from diskbuffer.editing.merging import merge
from diskbuffer.editing.renaming import rename_column
from diskbuffer.editing.splitting import split
from diskbuffer.editing.tagging import tag

__all__ = ["copy", "delete", "merge", "rename_column", "split", "tag"]
