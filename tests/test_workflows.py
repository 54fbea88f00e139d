"""The workflows of a public forge, read as it reads them, and at one with the project."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text("utf-8"))


def project():
    return (ROOT / "pyproject.toml").read_text("utf-8")


def all_steps():
    return [
        (path.name, step)
        for path in FILES
        for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values()
        for step in job["steps"]
    ]


def test_there_are_two():
    assert [path.name for path in FILES] == ["release.yml", "tests.yml"]


def test_every_job_has_a_machine_a_limit_and_steps_that_do_something():
    for path in FILES:
        for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values():
            assert {"runs-on", "timeout-minutes", "steps"} <= job.keys()
            assert all(("uses" in step) != ("run" in step) for step in job["steps"])


def test_tests_run_on_three_systems_with_three_pythons_that_the_project_names():
    jobs = read("tests.yml")["jobs"]
    systems = [jobs["linux"]["runs-on"], *jobs["elsewhere"]["strategy"]["matrix"]["system"]]
    assert [system.split("-")[0] for system in systems] == ["ubuntu", "macos", "windows"]
    named = re.findall(r"Python :: (3\.\d+)\"", project())
    for job in ("linux", "elsewhere"):
        pythons = jobs[job]["strategy"]["matrix"]["python"]
        assert len(pythons) == 3
        assert {*pythons} <= {*named}
        assert {named[0], named[-1]} <= {*pythons}


def test_what_they_run_is_there():
    for name, step in all_steps():
        for path in re.findall(r"(?<![\w/])((?:tests|\.ci)/[\w/.]+)", step.get("run", "")):
            assert (ROOT / path).exists(), (name, path)
        for extra in re.findall(r"\.\[(\w+)\]", step.get("run", "")):
            assert re.search(rf"^{extra} = \[", project(), re.M), (name, extra)


def test_the_release_has_the_right_to_publish_and_no_password():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    release = read("release.yml")
    assert release["permissions"] == {"contents": "read"}
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert release["jobs"]["publish"]["needs"] == "build"
    assert "secrets." not in text
    assert "password" not in text.replace("no password", "")


def test_the_site_is_published_from_main_after_the_tests():
    jobs = read("tests.yml")["jobs"]
    built, published = jobs["docs"]["steps"], jobs["site"]
    assert built[-1]["with"]["path"] == "site"  # the folder of mkdocs build
    assert {*published["needs"]} == {"linux", "docs"}
    assert "refs/heads/main" in published["if"]
    assert published["permissions"] == {"pages": "write", "id-token": "write"}


def test_all_files_name_one_place():
    (place,) = re.findall(r'^Source = "(.+)"$', project(), re.M)
    for name in ("CITATION.cff", "SECURITY.md", "pyproject.toml"):
        text = (ROOT / name).read_text("utf-8")
        owners = re.findall(r"https://github\.com/[\w-]+/[\w-]+", text)
        assert {*owners} == {place}, name
