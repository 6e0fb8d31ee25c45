"""Credentials from the environment, from Triton's credential file and from a vendor's own files;
and requests without credentials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from naiad.errors import NaiadError
from naiad.stores import credentials
from naiad.stores.credentials import store_options
from naiad.stores.location import parse_location


@pytest.fixture(autouse=True)
def no_vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the vendor: the test may run on a cloud machine."""
    monkeypatch.setattr(credentials, "_VENDOR_FILE", tmp_path / "vendor")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def options(url: str, environment: dict[str, str]) -> dict[str, Any]:
    return store_options(parse_location(url), environment)


def test_aws_from_the_environment(home: dict[str, str]) -> None:
    given = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_SESSION_TOKEN": "c",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }
    expected = {
        "access_key_id": "a",
        "secret_access_key": "b",
        "session_token": "c",
        "region": "eu-west-1",
    }
    assert options("s3://b", home | given) == expected


def test_aws_from_a_profile(home: dict[str, str]) -> None:
    folder = Path(home["HOME"]) / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id=d\naws_secret_access_key=e\n[other]\naws_access_key_id=o\naws_secret_access_key=p\n"
    )
    (folder / "config").write_text("[profile other]\nregion = ap-south-1\n")
    assert options("s3://b", home) == {
        "access_key_id": "d",
        "secret_access_key": "e",
        "region": "us-east-1",
    }
    assert options("s3://b", home | {"AWS_PROFILE": "other"}) == {
        "access_key_id": "o",
        "secret_access_key": "p",
        "region": "ap-south-1",
    }


def test_requests_without_credentials_are_not_signed(home: dict[str, str]) -> None:
    assert options("s3://b", home) == {"region": "us-east-1", "skip_signature": True}
    assert options("gs://b", home) == {"skip_signature": True}
    assert options("as://account/c", home) == {"account_name": "account", "skip_signature": True}


def test_a_role_signs_without_a_key(home: dict[str, str], tmp_path: Path) -> None:
    assert "skip_signature" not in options(
        "s3://b", home | {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}
    )
    assert "skip_signature" not in options(
        "as://a/c", home | {"AZURE_STORAGE_AUTH_TYPE": "default"}
    )
    (tmp_path / "vendor").write_text("Amazon EC2\n")
    assert "skip_signature" not in options("s3://b", home)
    (tmp_path / "vendor").write_text("Google\n")
    assert options("gs://b", home) == {}


def test_google(home: dict[str, str]) -> None:
    assert options("gs://b", home | {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"}) == {
        "application_credentials": "/key.json"
    }
    default = Path(home["HOME"]) / ".config/gcloud/application_default_credentials.json"
    default.parent.mkdir(parents=True)
    default.touch()
    assert options("gs://b", home) == {"application_credentials": str(default)}


def test_azure(home: dict[str, str]) -> None:
    given = home | {"AZURE_STORAGE_ACCOUNT": "account", "AZURE_STORAGE_KEY": "k"}
    assert options("as://account/c", given) == {"account_name": "account", "account_key": "k"}
    assert options("as://another/c", given) == {"account_name": "another", "skip_signature": True}


@pytest.fixture
def file(home: dict[str, str], tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "credentials.json"
    path.write_text(
        json.dumps(
            {
                "s3": {
                    "": {"key_id": "all", "secret_key": "s", "region": "r"},
                    "s3://bucket": {"key_id": "bucket", "secret_key": "s", "session_token": "t"},
                    "s3://bucket/deep": {"key_id": "deep", "secret_key": "s", "profile": ""},
                },
                "gs": {"": "/all.json", "gs://mine": "/mine.json"},
                "as": {"as://account/c": {"account_str": "account", "account_key": "k"}},
            }
        )
    )
    return home | {"TRITON_CLOUD_CREDENTIAL_PATH": str(path), "AWS_ACCESS_KEY_ID": "environment"}


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("s3://x", "all"),
        ("s3://bucket", "bucket"),
        ("s3://bucket/a", "bucket"),
        ("s3://bucket/deep/er", "deep"),
        ("s3://bucketful/a", "all"),
    ],
)
def test_the_longest_url_in_the_credential_file_wins(
    file: dict[str, str], url: str, key: str
) -> None:
    assert options(url, file)["access_key_id"] == key


def test_the_empty_url_in_the_credential_file_is_for_all_others(file: dict[str, str]) -> None:
    assert options("gs://mine/x", file) == {"application_credentials": "/mine.json"}
    assert options("gs://yours", file) == {"application_credentials": "/all.json"}
    assert options("as://account/c/d", file) == {"account_name": "account", "account_key": "k"}
    assert options("as://other/c", file) == {"account_name": "other", "skip_signature": True}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"s3": []}', '{"s3": {"": 7}}', '{"s3": {"": {"key_id": 7}}}']
)
def test_an_unreadable_credential_file_is_reported_without_its_content(
    home: dict[str, str], tmp_path: Path, text: str
) -> None:
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(NaiadError, match="the file of TRITON_CLOUD_CREDENTIAL_PATH"):
        options("s3://b", home | {"TRITON_CLOUD_CREDENTIAL_PATH": str(tmp_path / "broken.json")})
    with pytest.raises(NaiadError, match="cannot be read"):
        options("s3://b", home | {"TRITON_CLOUD_CREDENTIAL_PATH": str(tmp_path / "nowhere")})


@pytest.mark.parametrize(
    ("url", "variables", "expected"),
    [
        (
            "s3://b",
            {"AWS_ENDPOINT_URL": "http://h:9000/"},
            {"endpoint": "http://h:9000", "virtual_hosted_style_request": False},
        ),
        (
            "s3://b",
            {"AWS_ENDPOINT_URL": "http://other", "AWS_ENDPOINT_URL_S3": "https://h"},
            {"endpoint": "https://h", "virtual_hosted_style_request": False},
        ),
        (
            "gs://b",
            {"STORAGE_EMULATOR_HOST": "h:4443"},
            {"base_url": "http://h:4443", "skip_signature": True},
        ),
        (
            "gs://b",
            {"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": "https://storage-x.p.googleapis.com/"},
            {"base_url": "https://storage-x.p.googleapis.com"},
        ),
        (
            "as://a/c",
            {"AZURE_STORAGE_ENDPOINT": "http://h:10000/a", "AZURE_STORAGE_KEY": "k"},
            {"endpoint": "http://h:10000/a", "account_key": "k"},
        ),
        ("as://a/c", {"AZURE_STORAGE_USE_EMULATOR": "true"}, {"use_emulator": True}),
    ],
)
def test_private_endpoints_and_emulators(
    home: dict[str, str], url: str, variables: dict[str, str], expected: dict[str, Any]
) -> None:
    found = options(url, home | variables)
    assert {name: found.get(name) for name in expected} == expected
    assert not (found.get("use_emulator") and found.get("skip_signature"))
