"""A stand-in for Modal's service: its wire on the loopback, spoken by the SDK's own generated classes.

It keeps sandboxes as boxes (box.py) and runs their commands. It checks what Headway must always ask for, and
can be told to refuse. What the real service does with these calls it does not show.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import time

import grpclib.const
import grpclib.exceptions
import grpclib.server
from modal_proto import api_grpc, api_pb2, task_command_router_grpc
from modal_proto import task_command_router_pb2 as router_pb2

from tests.standins import box

_JWT = "e30.e30.e30"


class _Only:
    """Answers only the calls that are written; every other is UNIMPLEMENTED, by name."""

    def __mapping__(self):
        mapping = super().__mapping__()
        for path, handler in mapping.items():
            name = path.rpartition("/")[2]
            if name not in type(self).__dict__:
                mapping[path] = handler._replace(func=_unwritten(name))
            else:
                mapping[path] = handler._replace(func=self.watched(name, handler.func))
        return mapping

    def watched(self, name, answer):
        async def answered(stream):
            self.service.calls.append(name)
            if isinstance(self, _Api) and stream.metadata.get("x-modal-token-id") != "ak-stand-in":
                raise grpclib.exceptions.GRPCError(grpclib.const.Status.UNAUTHENTICATED, "no such token")
            refusals = self.service.refusals.get(name)
            if refusals:
                raise grpclib.exceptions.GRPCError(refusals.pop(0), "the stand-in was told to")
            await answer(stream)

        return answered


def _unwritten(name):
    async def refuse(stream):
        raise grpclib.exceptions.GRPCError(grpclib.const.Status.UNIMPLEMENTED, f"the stand-in has no {name}")

    return refuse


def concrete(cls):
    """Let a class do without the abstract methods that it leaves out: `_Only` answers for those."""
    cls.__abstractmethods__ = frozenset()
    return cls


class Service:
    """All that there is: sandboxes by id, programs by id."""

    def __init__(self, folder):
        self.folder = folder
        self.sandboxes = {}
        self.programs = {}
        self.calls = []
        self.refusals = {}  # call -> statuses to answer with, first to last
        self.url = ""
        self._count = 0

    @contextlib.asynccontextmanager
    async def running(self):
        server = grpclib.server.Server([_Api(self), _Router(self)])
        await server.start("127.0.0.1", 0)
        port = server._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            for sandbox in list(self.sandboxes.values()):
                self.end(sandbox)
            server.close()
            await server.wait_closed()

    def new(self, kind):
        self._count += 1
        return f"{kind}-{self._count:022d}"

    def running_ones(self):
        return [sandbox for sandbox in self.sandboxes.values() if self.runs(sandbox)]

    def runs(self, sandbox):
        return sandbox["ended"] is None and box.started(sandbox["first"]) == sandbox["started"]

    def end(self, sandbox):
        if sandbox["ended"] is None:
            sandbox["ended"] = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
            box.end(sandbox["guard"], sandbox["first"], sandbox["folder"])


@concrete
class _Api(_Only, api_grpc.ModalClientBase):
    def __init__(self, service):
        self.service = service

    async def ClientHello(self, stream):
        await stream.recv_message()
        await stream.send_message(api_pb2.ClientHelloResponse(image_builder_version="2024.10"))

    async def AuthTokenGet(self, stream):
        await stream.recv_message()
        await stream.send_message(api_pb2.AuthTokenGetResponse(token=_JWT))

    async def EnvironmentGetOrCreate(self, stream):
        await stream.recv_message()
        metadata = api_pb2.EnvironmentMetadata(
            name="main", settings=api_pb2.EnvironmentSettings(image_builder_version="2024.10")
        )
        await stream.send_message(
            api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)
        )

    async def AppGetOrCreate(self, stream):
        request = await stream.recv_message()
        await stream.send_message(api_pb2.AppGetOrCreateResponse(app_id=f"ap-{request.app_name}"))

    async def ImageGetOrCreate(self, stream):
        await stream.recv_message()
        await stream.send_message(
            api_pb2.ImageGetOrCreateResponse(
                image_id="im-base",
                result=api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS),
                metadata=api_pb2.ImageMetadata(image_builder_version="2024.10"),
            )
        )

    async def SandboxCreateV2(self, stream):
        request = await stream.recv_message()
        wanted = request.definition
        service = self.service
        if (
            not wanted.block_network
            and wanted.network_access.network_access_type != api_pb2.NetworkAccess.BLOCKED
        ):
            raise grpclib.exceptions.GRPCError(
                grpclib.const.Status.INVALID_ARGUMENT, "the stand-in wants no network"
            )
        if any(
            sandbox["name"] == wanted.name and service.runs(sandbox) for sandbox in service.sandboxes.values()
        ):
            raise grpclib.exceptions.GRPCError(grpclib.const.Status.ALREADY_EXISTS, "the name is taken")
        sandbox_id = service.new("sb-v2")
        folder = service.folder / sandbox_id
        guard, first = await asyncio.to_thread(
            box.make,
            folder,
            list(wanted.entrypoint_args),
            work="mode=755,size=512m",
            tmp="mode=1777,size=64m",
            drop_caps=False,
        )
        sandbox = {
            "id": sandbox_id, "name": wanted.name, "guard": guard, "first": first,
            "started": box.started(first), "folder": folder, "ended": None, "created": time.time(),
            "definition": wanted,
            "tags": {tag.tag_name: tag.tag_value for tag in request.tags},
        }  # fmt: skip
        service.sandboxes[sandbox_id] = sandbox
        await stream.send_message(
            api_pb2.SandboxCreateV2Response(sandbox_id=sandbox_id, task_id=f"ta-{sandbox_id}")
        )

    async def SandboxGetTaskIdV2(self, stream):
        request = await stream.recv_message()
        await stream.send_message(api_pb2.SandboxGetTaskIdResponse(task_id=f"ta-{request.sandbox_id}"))

    async def SandboxGetFromNameV2(self, stream):
        request = await stream.recv_message()
        for sandbox in self.service.running_ones():
            if sandbox["name"] == request.sandbox_name:
                await stream.send_message(api_pb2.SandboxGetFromNameResponse(sandbox_id=sandbox["id"]))
                return
        raise grpclib.exceptions.GRPCError(grpclib.const.Status.NOT_FOUND, "no such sandbox")

    async def SandboxGetFromName(self, stream):  # of the older backend, which the SDK asks next
        await stream.recv_message()
        raise grpclib.exceptions.GRPCError(grpclib.const.Status.NOT_FOUND, "no such sandbox")

    async def SandboxListV2(self, stream):
        request = await stream.recv_message()
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        found = [
            api_pb2.SandboxInfo(id=sandbox["id"], created_at=sandbox["created"])
            for sandbox in self.service.running_ones()
            if wanted.items() <= sandbox["tags"].items()
            and (not request.before_timestamp or sandbox["created"] < request.before_timestamp)
        ]
        found.sort(key=lambda info: -info.created_at)
        await stream.send_message(api_pb2.SandboxListResponse(sandboxes=found))

    async def SandboxTerminateV2(self, stream):
        request = await stream.recv_message()
        await asyncio.to_thread(self.service.end, self.service.sandboxes[request.sandbox_id])
        await stream.send_message(api_pb2.SandboxTerminateResponse())

    async def SandboxWaitV2(self, stream):
        request = await stream.recv_message()
        sandbox = self.service.sandboxes[request.sandbox_id]
        result = sandbox["ended"]
        if result is None and not self.service.runs(sandbox):
            result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE)
        await stream.send_message(api_pb2.SandboxWaitResponse(result=result))

    async def SandboxGetCommandRouterAccess(self, stream):
        await stream.recv_message()
        await stream.send_message(
            api_pb2.SandboxGetCommandRouterAccessResponse(url=self.service.url, jwt=_JWT)
        )


@concrete
class _Router(_Only, task_command_router_grpc.TaskCommandRouterBase):
    def __init__(self, service):
        self.service = service

    async def TaskExecStart(self, stream):
        request = await stream.recv_message()
        sandbox = self.service.sandboxes[request.task_id.removeprefix("ta-")]
        if not self.service.runs(sandbox):
            raise grpclib.exceptions.GRPCError(grpclib.const.Status.NOT_FOUND, "the task has ended")
        if request.exec_id not in self.service.programs:
            self.service.programs[request.exec_id] = await asyncio.create_subprocess_exec(
                *box.enter(sandbox["first"], list(request.command_args)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        await stream.send_message(router_pb2.TaskExecStartResponse())

    async def TaskExecStdioRead(self, stream):
        request = await stream.recv_message()
        program = self.service.programs[request.exec_id]
        is_out = request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        source = program.stdout if is_out else program.stderr
        assert request.offset == 0
        while data := await source.read(1 << 16):
            await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=data))

    async def TaskExecStdinWrite(self, stream):
        request = await stream.recv_message()
        stdin = self.service.programs[request.exec_id].stdin
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if request.data:
                stdin.write(request.data)
                await stdin.drain()
            if request.eof:
                stdin.close()
        await stream.send_message(router_pb2.TaskExecStdinWriteResponse())

    async def TaskExecWait(self, stream):
        request = await stream.recv_message()
        code = await self.service.programs[request.exec_id].wait()
        answer = {"code": code} if code >= 0 else {"signal": -code}
        await stream.send_message(router_pb2.TaskExecWaitResponse(**answer))


def destroy(sandbox):
    os.kill(sandbox["first"], signal.SIGKILL)
    while box.alive(sandbox["first"]):
        time.sleep(0.005)
    shutil.rmtree(sandbox["folder"], ignore_errors=True)
