"""Main of the grader's process: the only one that makes answers."""

from headrace.graders.service import grader_hello, grader_service
from headrace.processes.serve import Server
from headrace.runtime.adapters import open_grader_core
from headrace.runtime.workers.rights import give_up_rights
from headrace.runtime.workers.settings import GraderSettings, parse


def main() -> None:
    """Serves one grader."""
    settings, fd = parse(GraderSettings)
    core = open_grader_core(settings.kind, settings.options)
    give_up_rights(settings.uid, settings.readable)
    grader_service(core, Server(fd, grader_hello(core)))


if __name__ == "__main__":
    main()
