// Usage: node make_snapshot.mjs PYODIDE_FOLDER LIBRARY_ZIP OUT CALLS
//
// Start Python once, unpack the library, make each call of CALLS (JSON: [[function, inputs], …]) so that all it needs is
// imported and warm, and write the interpreter's memory, gzipped. Pages restore it instead of starting from nothing.

import { readFile, writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const [folder, zip, out, calls] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
const python = await loadPyodide({ _makeSnapshot: true });
python.unpackArchive(new Uint8Array(await readFile(zip)), "zip", { extractDir: "/lib/playbook" });
python.runPython('import sys; sys.path.insert(0, "/lib/playbook")');
const module = python.pyimport("python_call");
for (const [target, inputs] of JSON.parse(calls)) module.call(target, JSON.stringify(inputs));
module.destroy();
await writeFile(out, gzipSync(python.makeMemorySnapshot(), { level: 9 }));
process.exit(0);
