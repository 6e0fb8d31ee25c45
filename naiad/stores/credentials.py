"""Credentials for remote stores: from Triton's environment variables, its credential file, and the
vendor's usual places.

In:  a Location and an environment. Out: options for obstore. TRITON_CLOUD_CREDENTIAL_PATH names a
     JSON file with credentials for several URLs. The longest URL that is a prefix of the
     repository's URL wins; the entry "" is for all other repositories.
Rules: values are never logged. Without credentials, requests are not signed.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from naiad.errors import NaiadError, invalid_arg
from naiad.stores.location import Location

CREDENTIAL_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"
Environment = Mapping[str, str]
Options = dict[str, Any]
SECRET_VARIABLES = {
    "s3": (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"),
        *("AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    ),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    "as": (
        *("AZURE_STORAGE_KEY", "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_SAS_KEY"),
        *("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"),
        *("AZURE_FEDERATED_TOKEN_FILE",),
    ),
    # HF_TOKEN is not here: backends use it to download checkpoints.
    "hf": (),
}
"""The variables from which a store of this scheme gets its credentials. The workers of a server
that has such a repository do not see them."""
_VENDOR_FILE = Path("/sys/class/dmi/id/sys_vendor")


def store_options(location: Location, environment: Environment) -> Options:
    """Raises NaiadError if the credential file cannot be used."""
    entry = _entry(location, environment)
    match location.scheme:
        case "s3":
            return _aws(entry, environment) | _aws_endpoint(environment)
        case "gs":
            return _google(entry, environment)
        case _:
            return _azure(location, entry, environment)


def _entry(location: Location, environment: Environment) -> Any:
    path = environment.get(CREDENTIAL_FILE)
    if not path:
        return None
    try:
        document = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, dict[str, Any]])
    except OSError as error:
        raise _unusable(f"cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise _unusable("is not JSON such as {scheme: {url: credential}}") from error
    entries = document.get(location.scheme, {})
    urls = [
        url
        for url in entries
        if location.url == url or location.url.startswith(f"{url.rstrip('/')}/") or not url
    ]
    return entries[max(urls, key=len)] if urls else None


def _unusable(reason: str) -> NaiadError:
    return invalid_arg(f"the file of {CREDENTIAL_FILE} {reason}")


def _fields(entry: Any) -> dict[str, str]:
    if entry is None:
        return {}
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise _unusable("has an entry that is not an object of strings")
    return {name: value for name, value in entry.items() if value}


# AWS.


def _aws(entry: Any, environment: Environment) -> Options:
    given = _fields(entry)
    options: Options = {}
    if "key_id" in given:
        options = {
            "access_key_id": given["key_id"],
            "secret_access_key": given.get("secret_key", ""),
        }
        if "session_token" in given:
            options["session_token"] = given["session_token"]
    elif "profile" in given or not environment.get("AWS_ACCESS_KEY_ID"):
        options = _aws_profile(
            given.get("profile") or environment.get("AWS_PROFILE") or "default", environment
        )
    else:
        names = {
            "access_key_id": "AWS_ACCESS_KEY_ID",
            "secret_access_key": "AWS_SECRET_ACCESS_KEY",
            "session_token": "AWS_SESSION_TOKEN",
        }
        options = {
            option: environment[name] for option, name in names.items() if environment.get(name)
        }
    region = (
        given.get("region")
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
        or options.pop("region", "")
    )
    options["region"] = region or "us-east-1"
    if "access_key_id" not in options and not _has_aws_identity(environment):
        options["skip_signature"] = True
    return options


def _aws_endpoint(environment: Environment) -> Options:
    endpoint = _first(environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return {"endpoint": endpoint, "virtual_hosted_style_request": False} if endpoint else {}


def _first(environment: Environment, *names: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), "").rstrip("/")


def _aws_profile(profile: str, environment: Environment) -> Options:
    home = Path(environment.get("HOME") or "/")
    credentials = _ini(
        environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws/credentials", profile
    )
    config = _ini(
        environment.get("AWS_CONFIG_FILE") or home / ".aws/config",
        profile if profile == "default" else f"profile {profile}",
    )
    found = config | credentials
    names = {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
        "region": "region",
    }
    return {option: found[name] for option, name in names.items() if name in found}


def _ini(path: str | Path, section: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(Path(path).read_text())
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    return dict(parser[section]) if parser.has_section(section) else {}


def _has_aws_identity(environment: Environment) -> bool:
    """Whether obstore can find an identity itself: from the environment, a role, or the machine."""
    names = (
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )
    return any(name in environment for name in names) or _is_machine_of("Amazon")


# Google.


def _google(entry: Any, environment: Environment) -> Options:
    if emulator := _first(environment, "STORAGE_EMULATOR_HOST"):
        url = emulator if "://" in emulator else f"http://{emulator}"
        return {"base_url": url, "skip_signature": True}
    private = _first(environment, "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE")
    return _google_identity(entry, environment) | ({"base_url": private} if private else {})


def _google_identity(entry: Any, environment: Environment) -> Options:
    path = (
        entry
        if isinstance(entry, str) and entry
        else environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    )
    default = (
        Path(environment.get("HOME") or "/") / ".config/gcloud/application_default_credentials.json"
    )
    if path:
        return {"application_credentials": path}
    if default.is_file():
        return {"application_credentials": str(default)}
    return (
        {}
        if "GOOGLE_BEARER_TOKEN" in environment or _is_machine_of("Google")
        else {"skip_signature": True}
    )


# Azure.


def _azure(location: Location, entry: Any, environment: Environment) -> Options:
    given = _fields(entry)
    account = given.get("account_str") or location.account
    key = given.get("account_key") or environment.get("AZURE_STORAGE_KEY") or ""
    if not given and environment.get("AZURE_STORAGE_ACCOUNT", account) != account:
        key = ""  # The key belongs to another account.
    options: Options = {"account_name": account}
    if key:
        options["account_key"] = key
    elif not given and not _has_azure_identity(environment):
        options["skip_signature"] = True
    if endpoint := _first(environment, "AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_BLOB_ENDPOINT"):
        options["endpoint"] = endpoint
    if environment.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true"):
        options["use_emulator"] = True
        options.pop("skip_signature", None)  # It has a key that everybody knows.
    return options


def _has_azure_identity(environment: Environment) -> bool:
    """Whether there is a service principal, a workload identity, or an identity of the machine.
    AZURE_STORAGE_AUTH_TYPE=default says that there is one."""
    names = (
        "AZURE_CLIENT_ID",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "IDENTITY_ENDPOINT",
    )
    return environment.get("AZURE_STORAGE_AUTH_TYPE") == "default" or any(
        name in environment for name in names
    )


def _is_machine_of(vendor: str) -> bool:
    try:
        return vendor in _VENDOR_FILE.read_text()
    except OSError:
        return False
