// Runs a program for WebAssembly with Node.js, with the folders that tests read and write:
//     node tests/wasi.mjs PROGRAM ARGUMENTS...
import { readFile } from 'node:fs/promises';
import { WASI } from 'node:wasi';

const args = process.argv.slice(2);
const wasi = new WASI({ version: 'preview1', args, env: process.env, returnOnExit: true,
                        preopens: { '/tmp': '/tmp', '.': '.' } });
const program = await WebAssembly.compile(await readFile(args[0]));
const imports = { wasi_snapshot_preview1: wasi.wasiImport };
process.exitCode = wasi.start(await WebAssembly.instantiate(program, imports));
