"""What linters and generators of clients demand of the OpenAPI document."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator
from pydantic import SecretStr

from operator_api.app import create_app
from operator_api.service import bootstrap
from services.settings import Settings
from tests.running_service import OPERATOR_KEY

METHODS = {"get", "put", "post", "delete", "patch"}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    data_dir: Path = tmp_path_factory.mktemp("data")
    settings = Settings(operator_key=SecretStr(OPERATOR_KEY), data_dir=data_dir, min_free_disk_bytes=0)
    service = bootstrap(settings)
    try:
        return create_app(service).openapi()
    finally:
        service.database.close()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        assert methods.keys() <= METHODS, path
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a document but those in examples."""
    if isinstance(value, dict):
        yield value
        for name, part in value.items():
            if name not in ("example", "examples"):
                yield from objects(part)
    elif isinstance(value, list):
        for part in value:
            yield from objects(part)


def test_the_document_introduces_itself(document: dict[str, Any]) -> None:
    assert document["servers"][0]["url"]
    assert document["info"]["contact"]["name"]
    for heading in ("Authentication", "A round in six calls", "Clocks", "Errors", "Lists"):
        assert f"## {heading}" in document["info"]["description"]
    tags = [tag["name"] for tag in document["tags"]]
    assert tags[:5] == ["clients", "reports", "tasks", "rounds", "devices"]
    assert all(tag["description"] for tag in document["tags"])
    used = {tag for _, operation in operations(document) for tag in operation["tags"]}
    assert used == set(tags)


def test_operations_have_short_ids_and_descriptions(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(ids) == len(set(ids)) > 35
    assert {"open_round", "upload_update", "create_task", "enrol_client"} <= set(ids)
    assert max(map(len, ids)) <= 24
    for name, operation in operations(document):
        assert operation["summary"], name
        assert operation["description"], name


def test_every_parameter_and_header_is_described(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), f"{name}: {parameter['name']}"
        for status, response in operation["responses"].items():
            assert response["description"], f"{name}: {status}"
            for header, described in response.get("headers", {}).items():
                assert described.get("description"), f"{name}: {status} {header}"


def test_links_have_parameters_only(document: dict[str, Any]) -> None:
    ids = {operation["operationId"] for _, operation in operations(document)}
    links = [
        link
        for _, operation in operations(document)
        for response in operation["responses"].values()
        for link in response.get("links", {}).values()
    ]
    assert len(links) > 10
    assert all(link["operationId"] in ids for link in links)
    assert not any("requestBody" in link for link in links)


def test_schemas_are_what_generators_understand(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        has_both = "properties" in schema and schema.keys() & {"anyOf", "oneOf", "allOf"}
        assert not has_both, f"{name}: a rule beside properties is said in words"
    for schema in objects(document["paths"]):
        assert "itemSchema" not in schema
    unions = [schema for schema in objects(document) if "discriminator" in schema]
    assert unions
    for union in unions:
        tag = union["discriminator"]["propertyName"]
        for choice in union["oneOf"]:
            chosen = document["components"]["schemas"][choice["$ref"].rpartition("/")[2]]
            assert tag in chosen["required"], chosen["title"]


def test_labels_are_a_map_of_strings(document: dict[str, Any]) -> None:
    for name in ("EnrolmentRequest", "EnrolmentResponse", "TaskRequest", "TaskResponse", "ClientResponse"):
        labels = document["components"]["schemas"][name]["properties"]["labels"]
        assert labels["additionalProperties"]["type"] == "string", name


def test_arrays_in_requests_are_bounded(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name in [name for name in schemas if name.endswith("Request")]:
        for schema in objects(schemas[name]):
            assert schema.get("type") != "array" or "maxItems" in schema, name


def test_examples_conform_to_their_schemas(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    with_examples = [name for name, schema in schemas.items() if "examples" in schema]
    assert len(with_examples) > 20
    for name in with_examples:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        validator = Draft202012Validator(schema)
        for example in schemas[name]["examples"]:
            found = [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(example)]
            assert not found, name


def test_no_two_path_templates_match_the_same_path_with_the_same_method(document: dict[str, Any]) -> None:
    shapes: dict[tuple[str, ...], str] = {}
    for name, _ in operations(document):
        method, _, path = name.partition(" ")
        shape = (method, *("{}" if part.startswith("{") else part for part in path.split("/")))
        assert shape not in shapes, f"{name} and {shapes.get(shape)}"
        shapes[shape] = name
    for method, *parts in shapes:
        for other_method, *others in shapes:
            if (method, len(parts)) == (other_method, len(others)) and parts != others:
                pairs = list(zip(parts, others, strict=True))
                assert any(one != two and "{}" not in (one, two) for one, two in pairs), (parts, others)
