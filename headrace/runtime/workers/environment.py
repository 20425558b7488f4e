"""Main of the process that hosts a user's own tools."""

from headrace.environments.parts.host import Host
from headrace.environments.parts.messages import PartSettings
from headrace.extend.loading import PartOptions, load_part
from headrace.runtime.workers.settings import parse


def main() -> None:
    """Serves one part."""
    settings, fd = parse(PartSettings)
    part = load_part(PartOptions(name=settings.name, file=settings.file, module=settings.module))
    Host(part, settings, fd).serve()


if __name__ == "__main__":
    main()
