"""Everything stands in pyproject.toml, but for this: the schemas in docs/schema go into the package."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SCHEMAS = sorted(str(path) for path in Path("docs", "schema").glob("*.json"))


class BuildWithSchemas(build_py):  # type: ignore[misc]  # it has no types
    """In a checkout, redbeat/web/api/schemas.py reads them where they are."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "redbeat", "schema")
            self.mkpath(str(folder))
            for schema in SCHEMAS:
                self.copy_file(schema, str(folder))

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *SCHEMAS]


setup(cmdclass={"build_py": BuildWithSchemas})
