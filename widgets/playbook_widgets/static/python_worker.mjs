// Python in a web worker of its own: Pyodide, with the book's standard-library rooms, behind one function.
//
// A memory snapshot, taken when the book was built, holds the interpreter with everything imported: it starts in about
// a second. Without one, or with one that this browser will not load, Python starts the ordinary way.

import { loadPyodide } from "../../vendor/pyodide/pyodide.mjs";

const here = (file) => new URL(`python/${file}`, import.meta.url);
const library = "/lib/playbook";

async function fetchBytes(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url} answers ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}

async function fetchSnapshot() {
  const answer = await fetch(here("snapshot.bin.gz"));
  if (!answer.ok) throw new Error(`no snapshot: ${answer.status}`);
  // Some servers send the file as what it is, others as what is packed in it, and the browser has then unpacked it.
  const bytes = new Uint8Array(await answer.arrayBuffer());
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(unpacked).arrayBuffer());
}

async function start() {
  const files = fetchBytes(here("library.zip"));
  let python,
    snapshot = true;
  try {
    python = await loadPyodide({ _loadSnapshot: await fetchSnapshot() });
  } catch {
    snapshot = false;
    python = await loadPyodide();
  }
  python.unpackArchive(await files, "zip", { extractDir: library });
  python.runPython(`import sys; "${library}" in sys.path or sys.path.insert(0, "${library}")`);
  return { call: python.pyimport("python_call").call, snapshot };
}

const started = start();
started.then(
  ({ snapshot }) => self.postMessage({ ready: true, snapshot }),
  (error) => self.postMessage({ failed: String(error.message ?? error) }),
);

self.onmessage = async ({ data: { id, target, text } }) => {
  try {
    const { call } = await started;
    self.postMessage({ id, text: call(target, text) });
  } catch (error) {
    self.postMessage({ id, error: String(error.message ?? error) });
  }
};
