import pytest

from services.storage.model_store import S3Location, parse_s3_location


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://models", S3Location("models", "")),
        ("s3://models/", S3Location("models", "")),
        ("s3://my.models-2/site/one/", S3Location("my.models-2", "site/one")),
    ],
)
def test_a_place_is_read_and_written(text: str, place: S3Location) -> None:
    assert parse_s3_location(text) == place
    assert str(place) == text.rstrip("/")


@pytest.mark.parametrize(
    "text",
    [
        "s3://",
        "s3:///prefix",
        "s3://ab",
        "s3://Models",
        "s3://models//a",
        "s3://models/a b",
        "gs://models",
        "models",
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="s3://bucket/prefix"):
        parse_s3_location(text)
