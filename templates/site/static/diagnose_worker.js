import { loadPyodide } from "../program/pyodide.mjs";

// The command itself reads a log. The two libraries that are compiled for each machine are not in the browser: Python
// has the one here, and what the other checks was checked where the site was made.
const START = `
import argparse
import json
import sys
import types
from compression import zstd
from pathlib import Path
from knowngood.core import data_files, json_document

def load_json(path, parse, modules, *, remedy=""):
    data = data_files.read_compressed_text(path, remedy) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(data)

def parse_json(data, file, content, *, remedy=""):
    return json.loads(data)

class ZstdDecompressor:
    def decompress(self, data):
        return zstd.decompress(data)

sys.modules["zstandard"] = types.SimpleNamespace(ZstdDecompressor=ZstdDecompressor, ZstdError=zstd.ZstdError)
data_files.load_json_checked_once, json_document.parse_json = load_json, parse_json

from knowngood_diagnose.cli import diagnose as command
from knowngood_diagnose.failures.known_failures import unpack_known_failures

known = unpack_known_failures(Path("known_failures").read_bytes())

def diagnose(log):
    Path("log").write_bytes(log)
    parser = argparse.ArgumentParser()
    command.configure(parser)
    answer = command.answer_log(parser.parse_args(["log", "--why"]), known)
    return answer.text, [match["incident"] for match in answer.document["matches"]]
`;

const ready = (async () => {
  const python = await loadPyodide();
  const archive = await fetch(new URL("../program/knowngood.zip", import.meta.url));
  python.unpackArchive(await archive.arrayBuffer(), "zip", { extractDir: "/home/pyodide" });
  python.runPython(START);
  return python;
})();

self.addEventListener("message", async ({ data }) => {
  try {
    const python = await ready;
    const [text, incidents] = python.globals.get("diagnose")(python.toPy(data)).toJs();
    self.postMessage({ text, incidents });
  } catch (error) {
    self.postMessage({ error: String(error) });
  }
});
