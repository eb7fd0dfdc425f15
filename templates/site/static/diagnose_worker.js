import { loadPyodide } from "../program/pyodide.mjs";

// One file, read by the command itself; the archive lies as an installed program does.
const START = `
import argparse
from pathlib import Path
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
