"""Stores from stores: some of the episodes or columns, other names or compression, several stores as one; and tags.

All but `tag` write a new store beside its place, which is moved there when it is whole, and leave their sources as they are. A
run that was killed is finished by the same call.
"""

from diskbuffer.editing.copying import copy
from diskbuffer.editing.merging import merge
from diskbuffer.editing.tagging import tag

__all__ = ["copy", "merge", "tag"]
