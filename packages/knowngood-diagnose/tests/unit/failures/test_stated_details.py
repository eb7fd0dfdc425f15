"""Details of a log that decide between the reasons of a wide message: a key, a number, a path, a list, a prefix."""

from __future__ import annotations

import pytest

BEGIN = "Traceback (most recent call last):\n"
OWN = '  File "/home/u/project/train.py", line 51, in main\n'
PACKAGES = "/opt/conda/lib/python3.10/site-packages"


def notes(match):
    return " ".join(fix["note"] for fix in match["fix"])


def test_another_refusal_of_the_own_file_stays_its_own(first_match):
    match = first_match(f'{BEGIN}{OWN}    raise ValueError("No samples in the folder")\nValueError: No samples in it\n')
    assert match["incident"] == "own-error"


@pytest.mark.parametrize(
    ("log", "title", "remedy"),
    [
        (
            (
                f"{BEGIN}{OWN}    train()\ntriton.runtime.errors.OutOfResources: out of resource: shared memory, "
                "Required: 163840, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.\n"
            ),
            "more shared memory than this GPU has",
            "Smaller blocks",
        ),
        (
            ("The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n"),
            "The port 29500 of the rendezvous is taken",
            "--master_port",
        ),
        (
            (
                "ValueError: Unable to create tensor, you should probably activate truncation and/or padding with "
                "'padding=True' 'truncation=True' to have batched tensors with the same length. Perhaps your features "
                "(`input_ids` in this case) have excessive nesting (inputs type `list` where type `int` is expected).\n"
            ),
            "The tokenizer has no padding token",
            "padding=True",
        ),
    ],
)
def test_a_number_or_name_of_the_message_narrows_it(first_match, log, title, remedy):
    match = first_match(log)
    assert title in match["title"]
    assert remedy in notes(match)


@pytest.mark.parametrize(
    ("missing", "unexpected", "title", "remedy"),
    [
        ("bert.{}", "roberta.{}", "other names or shapes", "Compare the names"),
    ],
)
def test_the_prefix_by_which_names_differ_is_read(first_match, missing, unexpected, title, remedy):
    names = ("encoder.layer.0.weight", "encoder.layer.0.bias", "pooler.weight")
    wanted, given = (", ".join(f'"{form.format(name)}"' for name in names) for form in (missing, unexpected))
    match = first_match(
        "RuntimeError: Error(s) in loading state_dict for Model:\n"
        f"\tMissing key(s) in state_dict: {wanted}. \n\tUnexpected key(s) in state_dict: {given}. \n"
    )
    assert title in match["title"]
    assert remedy in notes(match)


@pytest.mark.parametrize(
    ("log", "incident"),
    [
        (f"{BEGIN}RuntimeError: write(): fd 29 failed with Input/output error\n", "writing-failed"),
        (
            (
                f"{BEGIN}safetensors_rust.SafetensorError: Error while serializing: IoError(Os {{ code: 122, kind: "
                'FilesystemQuotaExceeded, message: "Disk quota exceeded" })\n'
            ),
            "writing-failed",
        ),
        (f"{BEGIN}OSError: 1048576 requested and 4096 written\n", "writing-failed"),
        (
            (
                f"{BEGIN}subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no 10.0.0.2 hostname' "
                "returned non-zero exit status 255.\n"
            ),
            "ssh-between-nodes",
        ),
        ("pdsh@node1: node2: ssh exited with exit code 255\n", "ssh-between-nodes"),
        ("node2: ssh: connect to host node2 port 22: Connection refused\n", "ssh-between-nodes"),
        (
            (
                "from transformers import AdamW, WarmupLinearSchedule\nImportError: cannot import name "
                "'WarmupLinearSchedule'\n"
            ),
            "transformers-warmup-classes",
        ),
        (
            "h:1:2 [0] misc/socket.cc:5 NCCL WARN Connect to 10.1.2.3<57335> failed : Network is unreachable\n",
            "nccl-no-way-to-peer",
        ),
        (
            (
                "CUDA SETUP: Loading binary /x/bitsandbytes/libbitsandbytes_cuda118.so...\n"
                "libcusparse.so.11: cannot open shared object file: No such file or directory\n"
            ),
            "bitsandbytes-libraries-of-torch",
        ),
    ],
)
def test_a_failure_of_the_machine_is_known(first_match, log, incident):
    assert first_match(log)["incident"] == incident


HANDLED = (
    f'{BEGIN}  File "{PACKAGES}/datasets/packaged_modules/json/json.py", line 132, in _generate_tables\n'
    "    pa_table = paj.read_json(\n"
    "pyarrow.lib.ArrowInvalid: JSON parse error: Column() changed from object to array in row 0\n\n"
    f"During handling of the above exception, another exception occurred:\n\n{BEGIN}"
    f'  File "{PACKAGES}/datasets/packaged_modules/json/json.py", line 155, in _generate_tables\n'
)


def test_an_error_that_repeats_what_was_caught_stays_behind_it(first_match):
    match = first_match(
        HANDLED + "    raise e\npyarrow.lib.ArrowInvalid: JSON parse error: Column() changed from object to array\n"
    )
    assert (match["component"], match["line"]) == ("data", 4)


def test_an_import_that_a_notebook_marks_names_its_package(first_match):
    match = first_match(
        "---> 30 from transformers import AdamW, modeling_bert\nImportError: cannot import name 'modeling_bert'\n"
    )
    assert match["component"] == "transformers"
