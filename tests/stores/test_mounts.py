"""The options of an NFS mount decide when a machine sees an object that another machine has just created."""

from __future__ import annotations

from pathlib import Path

import pytest

from segue.stores.mounts import Mount, mount_of

CACHED = "rw,relatime,vers=4.2,hard,proto=tcp,lookupcache=all"
LINES = f"""\
/dev/vda / ext4 rw,relatime 0 0
10.0.0.9:/ /mnt/team\\040a nfs4 {CACHED} 0 0
tmpfs /mnt/team\\040a/memory tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"), [("/mnt", "ext4"), ("/mnt/team a/runs", "nfs4"), ("/mnt/team a/memory/runs", "tmpfs")]
)
def test_the_nearest_mount_above_a_folder_is_its_file_system(tmp_path, folder, kind):
    mounts = tmp_path / "mounts"
    mounts.write_text(LINES)
    assert mount_of(Path(folder), mounts=mounts).kind == kind


def test_without_a_list_of_mounts_the_file_system_is_unknown(tmp_path):
    assert mount_of(tmp_path, mounts=tmp_path / "missing") == Mount("", ())


@pytest.mark.parametrize(
    ("kind", "options", "hides"),
    [
        ("nfs4", "rw,hard,vers=4.1", True),  # The default of the option is not shown.
        ("nfs", "rw,hard,vers=3,acregmin=1", True),
        ("nfs4", "rw,hard,lookupcache=pos", False),
        ("nfs4", "rw,hard,lookupcache=none", False),
        ("nfs4", "rw,noac,hard", False),
        ("ext4", "rw,relatime", False),
    ],
)
def test_only_nfs_with_cached_lookups_hides_new_objects(kind, options, hides):
    assert Mount(kind, tuple(options.split(","))).hides_new_objects is hides
