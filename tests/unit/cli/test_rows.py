"""Rows of a CSV become requests of a batch, and its results become columns beside them."""

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from api.batches import lines
from api.openai import files
from director.cli import rows
from director.cli.batches import BatchAnswer, _describe, _how_far, read_batch
from director.cli.inputs import Described, FileFault
from director.cli.rows import Reader, Rows, write_requests, write_results
from tests.support.typed import typed

INPUTS: dict[str, Any] = {
    "text": {"type": "string"},
    "n": {"type": "integer", "minimum": 1},
    "scale": {"type": "number"},
    "loud": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "more": {"type": "object"},
    "image": {"type": "string", "format": "uri"},
}
INPUT: dict[str, Any] = {"type": "object", "properties": INPUTS, "required": ["text"]}
DATA = "data:text/plain;base64,aGk="
OUTPUT: dict[str, Any] = {"type": "array", "x-cog-array-display": "concatenate"}
KNOWN = Described(INPUTS, OUTPUT, {"Input": INPUT})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def csv_of(folder: Path, text: str | bytes) -> Rows:
    file = folder / "in.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return Rows(file)


def requests(of: Rows, known: Described | None = KNOWN, model: str = "a/b", **same: Any) -> list[dict[str, Any]]:
    to = io.BytesIO()
    numbers = write_requests(of, Reader(of, model, known, same), model, to)
    found = [json.loads(line) for line in to.getvalue().splitlines()]
    assert [each["custom_id"] for each in found] == [f"row-{number}" for number in numbers]
    return found


def inputs(of: Rows, known: Described | None = KNOWN, **same: Any) -> list[Any]:
    return [each["body"]["input"] for each in requests(of, known, **same)]


def test_schema_decides_how_a_cell_is_read(folder: Path) -> None:
    (folder / "a.txt").write_text("hi")
    text = 'text,n,scale,loud,tags,more,image\n5,5,5,TRUE,"[""a""]","{""b"":1}",@a.txt\n,,,,,,\n'
    text += "@a.txt,,1.5,false,,,http://h/\n"
    assert inputs(csv_of(folder, text)) == [
        {
            "text": "5",
            "n": 5,
            "scale": 5,
            "loud": True,
            "tags": ["a"],
            "more": {"b": 1},
            "image": "data:text/plain;base64,aGk=",
        },
        {"text": "@a.txt", "scale": 1.5, "loud": False, "image": "http://h/"},
    ]


def test_an_input_of_all_rows_and_a_version_are_in_each_request(folder: Path) -> None:
    [line] = requests(csv_of(folder, "text\nhi\n"), model=f"a/b:{'0' * 64}", n=3)
    assert (line["url"], line["method"]) == ("/v1/predictions", "POST")
    assert line["body"] == {"version": f"a/b:{'0' * 64}", "input": {"n": 3, "text": "hi"}}
    [line] = requests(csv_of(folder, "text\nhi\n"))
    assert (line["url"], line["body"]) == ("/v1/models/a/b/predictions", {"input": {"text": "hi"}})


@pytest.mark.parametrize(
    "text",
    ['\ufefftext;n\r\n"a;\r\nb";2\r\n', 'text\tn\n"a;\r\nb"\t2', 'text,n\n\n"a;\r\nb",2\n'],
    ids=["excel", "tabs", "blank row"],
)
def test_files_of_spreadsheets_are_read(folder: Path, text: str) -> None:
    of = csv_of(folder, text)
    assert inputs(of) == [{"text": "a;\r\nb", "n": 2}]
    assert [number for number, _ in of] == [3 if "\n\n" in text else 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("text,colour\na,b\n", "column colour of"),
        ("text,nn\na,b\n", "did you mean n?"),
        ("text,\na,b\n", "column 2 has no name"),
        ("text,text\na,b\n", "two columns are named text"),
        ("", "is empty"),
        ("text\n", "no rows"),
        ("text,n\na,1\nb,x\n,2\nc,0\nd,1,2\n", 'row 3: n: "x" is not of type'),
        ("text,n\na,1\nb,x\n,2\nc,0\nd,1,2\n", 'row 4: input: "text" is a required'),
        ("text,n\na,1\nb,x\n,2\nc,0\nd,1,2\n", "row 5: n: 0 is less than"),
        ("text,n\na,1\nb,x\n,2\nc,0\nd,1,2\n", "row 6: it has 3 cells, and the header has 2"),
        ("text,image\na,@gone.png\n", "row 2: image: cannot read gone.png"),
        ('text\na\n"b\n', "row 3: this is no CSV"),
        (b"text\na\n\xff\n", "not in UTF-8"),
        (b"t\xff\na\n", "not in UTF-8"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(folder: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(FileFault) as refused:
        requests(csv_of(folder, text))
    assert says in str(refused.value)


def test_fault_of_a_long_cell_keeps_its_begin_and_its_end(folder: Path) -> None:
    with pytest.raises(FileFault) as refused:
        requests(csv_of(folder, f"text,n\na,{'x' * 100_000}\n"))
    said = str(refused.value)
    assert 'row 2: n: "xxx' in said
    assert said.endswith('is not of type "integer"')
    assert len(said.splitlines()[-1]) < 300


@pytest.mark.parametrize("option", ["--stream", "--timeout=5", "--idempotency-key=k"])
def test_options_of_one_prediction_are_refused_for_rows(capsys: pytest.CaptureFixture[str], option: str) -> None:
    ended = typed(capsys, "predict", "a/b", "--batch", "in.csv", option)
    assert (ended.returncode, "--batch does not go with" in ended.stderr) == (1, True)


def test_without_a_schema_each_column_is_an_input(folder: Path) -> None:
    assert inputs(csv_of(folder, "a,b\n1,x\n"), None) == [{"a": 1, "b": "x"}]


def test_limits_are_those_of_the_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (rows.MOST_LINES, rows.MOST_BYTES) == (lines.MOST_LINES, files.MAX_FILE_BYTES)
    monkeypatch.setattr(rows, "MOST_LINES", 2)
    with pytest.raises(FileFault, match=r"row 4 .* is beyond"):
        requests(csv_of(folder, "text\na\nb\nc\nd\n"))


def ended(number: int, body: Any = None, error: Any = None) -> bytes:
    response = None if body is None else {"status_code": 201, "request_id": "r", "body": body}
    return json.dumps({"id": "x", "custom_id": f"row-{number}", "response": response, "error": error}).encode() + b"\n"


def prediction(output: Any, status: str = "succeeded", error: str | None = None) -> dict[str, Any]:
    return {"id": f"p-{status}", "status": status, "output": output, "error": error}


def test_each_row_gets_its_result_in_the_order_of_the_rows(folder: Path) -> None:
    of = csv_of(folder, "text,status\n" + "".join(f"t{n},s\n" for n in range(2, 10)) + "short\n")
    output = io.BytesIO(
        ended(3, prediction(["a", "b"]))
        + ended(2, prediction("=1+1"))
        + ended(4, prediction({"k": [1]}))
        + ended(5, prediction(-2.5))
    )
    errors = io.BytesIO(
        ended(7, {"status": 422, "title": "no", "detail": "text is wrong"})
        + ended(6, prediction(None, "failed", "it broke"))
        + ended(8, error={"code": "batch_expired", "message": "too late"})
        + ended(9, error={"code": "batch_cancelled", "message": "stopped"})
    )
    to = io.BytesIO()
    assert write_results(of, (output, errors), KNOWN, to) == 5
    assert to.getvalue().decode().split("\r\n") == [
        "text,status,result_status,output,error,id",
        "t2,s,succeeded,'=1+1,,p-succeeded",
        "t3,s,succeeded,ab,,p-succeeded",
        't4,s,succeeded,"{""k"":[1]}",,p-succeeded',
        "t5,s,succeeded,-2.5,,p-succeeded",
        "t6,s,failed,,it broke,p-failed",
        "t7,s,failed,,text is wrong,",
        "t8,s,expired,,too late,",
        "t9,s,canceled,,stopped,",
        "short,,failed,,it was not run: the batch ended before,",
        "",
    ]


def test_memory_does_not_grow_with_the_file(folder: Path) -> None:
    text = "x" * 2_000
    (folder / "big.csv").write_text("text\n" + "".join(f"{n} {text}\n" for n in range(10_000)))
    of = Rows(folder / "big.csv")
    with (
        (folder / "lines").open("w+b") as to,
        (folder / "out").open("w+b") as out,
        (folder / "r.csv").open("wb") as end,
    ):
        for number in range(2, 10_002):
            out.write(ended(number, prediction(text)))
        out.seek(0)
        tracemalloc.start()
        write_requests(of, Reader(of, "a/b", KNOWN, {}), "a/b", to)
        write_results(of, (out,), KNOWN, end)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (folder / "lines").stat().st_size > 20 << 20
    assert peak < 5 << 20


def batch(**more: Any) -> BatchAnswer:
    given = {
        "id": "batch_1",
        "endpoint": "/v1/predictions",
        "status": "in_progress",
        "created_at": 0,
        "expires_at": 86400,
    }
    counts = {"total": 1_000, "completed": 190, "failed": 10}
    progress = {"lines_per_second": 2.0, "ends_at": 1_500, "causes": [{"code": "timed_out", "lines": 10}]}
    said = {**given, "in_progress_at": 1_000, "request_counts": counts, "progress": progress, **more}
    return read_batch(Raw(json.dumps(said).encode()))


def test_results_keep_the_encoding_and_the_delimiter_of_the_file(folder: Path) -> None:
    of = csv_of(folder, "\ufefftext;n\nü;2\n")
    to = io.BytesIO()
    write_results(of, (io.BytesIO(ended(2, prediction("ö"))),), KNOWN, to)
    assert to.getvalue().decode() == "\ufefftext;n;status;output;error;id\r\nü;2;succeeded;ö;;p-succeeded\r\n"


def test_batch_that_cannot_end_in_its_window_says_so() -> None:
    assert "the last lines would expire" in _describe(batch(expires_at=1_499), 1_100)
    assert "the last lines would expire" not in _describe(batch(expires_at=1_500), 1_100)


def test_forecast_is_what_is_left_at_the_rate_so_far() -> None:
    assert _how_far(batch(), 1_100) == "in_progress: 200 of 1,000 lines, 10 failed, 2 lines/s, ends in about 6.7 min"
    none = {"total": 1_000, "completed": 0, "failed": 0}
    progress = {"lines_per_second": None, "ends_at": None, "causes": []}
    shown = batch(request_counts=none, progress=progress)
    assert _how_far(shown, 1_100) == "in_progress: 0 of 1,000 lines, 0 failed"


def test_failures_are_shown_by_cause() -> None:
    assert _describe(batch(), 1_100).splitlines()[-1] == "  10 lines failed: timed_out"


def test_bad_lines_are_shown_with_their_numbers() -> None:
    errors = {"data": [{"message": "no model.", "line": 7}, {"message": "empty", "line": None}]}
    shown = _describe(
        batch(status="failed", errors=errors, request_counts={"total": 0, "completed": 0, "failed": 0}), 0
    )
    assert shown.splitlines()[-2:] == ["  line 7: no model.", "  empty"]


def test_success_is_only_a_batch_without_failed_lines() -> None:
    whole = {"total": 2, "completed": 2, "failed": 0}
    assert batch(status="completed", request_counts=whole).has_succeeded
    assert not batch(status="completed").has_succeeded
    assert not batch(status="expired", request_counts=whole).has_succeeded
