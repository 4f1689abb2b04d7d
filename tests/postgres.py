"""A PostgreSQL server of its own, on a socket in a temporary folder, run by a user that is not root."""

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

USERS = ("postgres", "nobody")  # of whom one runs the server if the tests run as root, which it refuses
PROGRAMS = ("initdb", "postgres", "psql", "pg_isready")
SETTINGS = {
    "listen_addresses": "", "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "shared_buffers": "16MB",
    "max_connections": "10", "autovacuum": "off",
}  # fmt: skip


def binaries():
    """Return the folder of the newest PostgreSQL that has all programs, or None."""
    known = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: -int(folder.parent.name))
    folders = [*known, *(Path(found).resolve().parent for found in [shutil.which("initdb")] if found)]
    return next((folder for folder in folders if all((folder / name).exists() for name in PROGRAMS)), None)


def _user():
    """Return the user who runs the server, or None for the one who runs the tests."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(known[name] for name in USERS if name in known)


class Server:
    """A running server."""

    def __init__(self, folder, bin_folder):
        self.folder, self.bin = folder, bin_folder

    def query(self, script):
        """Run a script in a session of its own, and return what it copies to standard output."""
        command = [
            self.bin / "psql",
            "-X",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            self.folder,
            "-U",
            "trueup",
            "-d",
            "postgres",
            "-f",
            "-",
        ]
        done = subprocess.run(command, input=script.encode(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()[:2_000]
        return done.stdout.decode()


@contextmanager
def server():
    """Run a server; its folder is removed afterwards."""
    user, bin_folder = _user(), binaries()
    with tempfile.TemporaryDirectory(prefix="trueup-postgres-") as folder:
        credentials = {}
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
            credentials = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": folder}
        data = Path(folder) / "data"
        options = ["-A", "trust", "-U", "trueup", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        start = {"cwd": folder, "env": environment, **credentials}
        subprocess.run([bin_folder / "initdb", "-D", data, *options], check=True, capture_output=True, **start)
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [bin_folder / "postgres", "-D", data, "-k", folder, *settings], stdout=log, stderr=log, **start
            )
        try:
            ready = [bin_folder / "pg_isready", "-q", "-h", folder, "-t", "1"]
            for _ in range(300):
                if subprocess.run(ready, check=False).returncode == 0:
                    break
                assert process.poll() is None, (Path(folder) / "log").read_text()
            yield Server(folder, bin_folder)
        finally:
            process.terminate()
            process.wait(60)
