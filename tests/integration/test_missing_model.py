"""A model file that the database knows of is not in the store, as after a restore from an older copy."""

from pathlib import Path

from tests.integration.cell import as_client, assert_problem, started_round
from tests.integration.rounds_setup import get_round, upload_as
from tests.running_service import service_process


def test_a_missing_model_file_is_said_to_be_missing_until_it_is_back(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    with service_process(tmp_path, log) as (service, _):
        opened, keys = started_round(service)
        ((client_id, key),) = keys.items()
        round_id = opened["round_id"]
        (file,) = (tmp_path / "models").glob("??/*.safetensors")
        elsewhere = file.rename(tmp_path / "elsewhere")

        with as_client(service, key) as client:
            answers = [
                service.get(f"/tasks/{opened['task_id']}/models/0"),
                client.get(f"/rounds/{round_id}/model"),
                upload_as(service, key, round_id, client_id),
            ]
            for answer in answers:
                problem = assert_problem(answer, 503, "MODEL_FILE_MISSING")
                assert file.stem in problem["detail"]
            assert log.read_text().count('"cause": "MODEL_FILE_MISSING"') == len(answers)
            assert get_round(service, round_id)["state"] == "scheduled", "nobody has got the model"

            elsewhere.rename(file)
            assert client.get(f"/rounds/{round_id}/model").content == file.read_bytes()
            assert upload_as(service, key, round_id, client_id).status_code == 201
