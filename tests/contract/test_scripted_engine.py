"""The engine that the rollout tests script is an engine."""

from tests.contract.engine_contract import EngineContract
from tests.unit.rollout_parts import ScriptedEngine


class TestScriptedEngine(EngineContract):
    async def make_engine(self):
        return ScriptedEngine(
            context=self.context, max_running=self.max_running, manifests=lambda name: name.isdigit()
        )

    def manifest(self, number):
        return str(number)
