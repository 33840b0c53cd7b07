"""A node over SSH: this run's own key, its pinned host key, and nothing else."""

from __future__ import annotations

import base64
import io
import shlex
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from testbed.errors import CommandFailed, CommandTimeout, Unreachable
from testbed.host.base import Completed

_BLOCK_BYTES = 256 * 1024

Connector = Callable[[str, int, float], socket.socket]
"""Opens a TCP connection to (address, port) within a time; the lab's opens it from inside."""


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """An Ed25519 key in OpenSSH's formats."""

    private: str
    public: str  # "ssh-ed25519 AAAA..."

    @classmethod
    def of(cls, private: str) -> KeyPair:
        """Return the pair of a private key."""
        key = paramiko.Ed25519Key(file_obj=io.StringIO(private))
        return cls(private=private, public=f"{key.get_name()} {key.get_base64()}")


def new_key_pair() -> KeyPair:
    """Return a fresh key pair; nothing is written."""
    private = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    return KeyPair.of(private.decode())


class RemoteProcess:
    """A program that runs on a node; its standard streams are an SSH channel.

    Standard error goes to ``on_log`` from a thread of its own. The program must end when its
    standard input does: that is how closing the channel ends it.
    """

    def __init__(
        self, host: str, channel: paramiko.Channel, on_log: Callable[[bytes], None]
    ) -> None:
        self.host = host
        self._channel = channel
        self._logging = threading.Thread(target=self._log, args=(on_log,), daemon=True)
        self._logging.start()

    def _log(self, on_log: Callable[[bytes], None]) -> None:
        while chunk := self._channel.recv_stderr(65536):
            on_log(chunk)

    def write_line(self, line: str) -> None:
        """Send one line to its standard input."""
        try:
            self._channel.sendall(f"{line}\n".encode())
        except OSError as error:
            raise Unreachable(f"{self.host}: the connection broke") from error

    def lines(self) -> Iterator[str]:
        """Yield the lines of its standard output until it ends."""
        pending = b""
        while chunk := self._channel.recv(65536):
            *whole, pending = (pending + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
        if pending:
            yield pending.decode(errors="replace")

    def exit_status(self, timeout_s: float) -> int:
        """Return the exit status; -1 if the connection broke before there was one.

        Raises:
            CommandTimeout: it goes on beyond ``timeout_s``.
        """
        if not self._channel.status_event.wait(timeout_s):
            raise CommandTimeout(f"{self.host}: the program did not end in {timeout_s:g} s")
        self._logging.join(timeout_s)
        return self._channel.exit_status

    def close(self) -> None:
        """Close the channel, which ends the program; may be called twice."""
        self._channel.close()


class SshHost:
    """A machine over SSH. Made by ``connected``; safe to use from several threads."""

    def __init__(self, name: str, client: paramiko.SSHClient) -> None:
        self.name = name
        self._client = client

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        stdin: str = "",
        check: bool = True,
    ) -> Completed:
        """Run a command to its end; see ``Host.run``."""
        status, stdout, stderr = self._run_bytes(argv, (stdin.encode(),), timeout_s)
        if check and status != 0:
            raise CommandFailed(self.name, argv, status, stderr.decode(errors="replace"))
        return Completed(
            exit_status=status,
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
        )

    def put(self, content: bytes, path: PurePosixPath, *, mode: int = 0o644) -> None:
        """Write a file whole; see ``Host.put``."""
        part = shlex.quote(f"{path}.part")
        script = (
            f"mkdir -p {shlex.quote(str(path.parent))} && cat > {part} && chmod {mode:o} {part} "
            f"&& mv {part} {shlex.quote(str(path))}"
        )
        self.feed(("sh", "-c", script), (content,))

    def get(self, path: PurePosixPath) -> bytes:
        """Return a file's bytes; see ``Host.get``."""
        return self.feed(("cat", "--", str(path)), ())

    def feed(
        self, argv: Sequence[str], stdin: Iterable[bytes], *, timeout_s: float = 120.0
    ) -> bytes:
        """Run a command that reads these bytes; return its output. Raises as ``Host.run`` does."""
        status, stdout, stderr = self._run_bytes(argv, stdin, timeout_s)
        if status != 0:
            raise CommandFailed(self.name, argv, status, stderr.decode(errors="replace"))
        return stdout

    def start(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: PurePosixPath,
        on_log: Callable[[bytes], None],
    ) -> RemoteProcess:
        """Start a program and return at once; the caller closes it."""
        assignments = [f"{key}={value}" for key, value in environment.items()]
        words = ("env", "-C", str(folder), *assignments, *argv)
        channel = self._channel()
        channel.exec_command(f"exec {shlex.join(words)}")
        return RemoteProcess(self.name, channel, on_log)

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._client.close()

    def _channel(self) -> paramiko.Channel:
        transport = self._client.get_transport()
        if transport is None or not transport.is_active():
            raise Unreachable(f"{self.name}: the SSH connection is gone")
        try:
            return transport.open_session(timeout=20)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(f"{self.name}: the SSH connection broke: {error}") from error

    def _run_bytes(
        self, argv: Sequence[str], stdin: Iterable[bytes], timeout_s: float
    ) -> tuple[int, bytes, bytes]:
        channel = self._channel()
        try:
            channel.settimeout(timeout_s)
            channel.exec_command(shlex.join(argv))
            for block in stdin:
                # sendall copies what is left for every packet: a large block costs its square.
                view = memoryview(block)
                for start in range(0, len(view), _BLOCK_BYTES):
                    channel.sendall(bytes(view[start : start + _BLOCK_BYTES]))
            channel.shutdown_write()
            # The outputs of one-shot commands are small: stderr fits its window while we read.
            stdout = channel.makefile("rb").read()
            stderr = channel.makefile_stderr("rb").read()
            if not channel.status_event.wait(timeout_s):
                raise TimeoutError
            return channel.exit_status, stdout, stderr
        except TimeoutError as error:
            raise CommandTimeout(
                f"{self.name}: `{' '.join(argv)}` did not end in {timeout_s:g} s"
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(f"{self.name}: the SSH connection broke: {error}") from error
        finally:
            channel.close()


@contextmanager
def connected(
    name: str,
    address: str,
    *,
    connect: Connector,
    key: KeyPair,
    host_key: str,
    port: int = 22,
    timeout_s: float = 20.0,
) -> Iterator[SshHost]:
    """Give an SSH session as root with this key to the machine that bears this host key.

    Raises:
        Unreachable: no answer, another host key than the pinned one, or the key is refused.
    """
    kind, encoded = host_key.split()[:2]
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    pinned = paramiko.Ed25519Key(data=base64.b64decode(encoded))
    client.get_host_keys().add(address if port == 22 else f"[{address}]:{port}", kind, pinned)
    try:
        client.connect(
            address,
            port,
            username="root",
            pkey=paramiko.Ed25519Key(file_obj=io.StringIO(key.private)),
            sock=connect(address, port, timeout_s),
            look_for_keys=False,
            allow_agent=False,
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
        )
    except paramiko.BadHostKeyException as error:
        client.close()
        raise Unreachable(
            f"{name} ({address}): it shows another host key than the one made for it; "
            "something else answers at its address"
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        client.close()
        raise Unreachable(f"{name} ({address}): no SSH session: {error}") from error
    host = SshHost(name, client)
    try:
        yield host
    finally:
        host.close()
