"""Names the machine in a wheel that contains libgpreempt.so; the rest is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution

HAS_LIBRARY = (Path(__file__).parent / "src" / "gpreempt" / "libgpreempt.so").exists()


class PackageWithLibrary(Distribution):
    """Code for one kind of machine, where the library is in it."""

    def has_ext_modules(self) -> bool:
        """Decides in which folder an installer puts the package."""
        return HAS_LIBRARY


class WheelForAnyPython(bdist_wheel):
    """ctypes loads the library, so that it does not depend on the version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, its binary interface, and the machine (`--plat-name`)."""
        python, interface, machine = super().get_tag()
        return ("py3", "none", machine) if HAS_LIBRARY else (python, interface, machine)


setup(distclass=PackageWithLibrary, cmdclass={"bdist_wheel": WheelForAnyPython})
