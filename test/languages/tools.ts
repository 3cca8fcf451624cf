import { existsSync } from 'node:fs';
import { cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { run } from './run.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
export const CACHE = path.join(ROOT, 'node_modules/.cache/anabranch-tools');

/** Programs installed by `go install`, with exact versions; Go's checksum database verifies them. */
const GO_PROGRAMS = {
  'protoc-gen-go': 'google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12',
  'protoc-gen-go-grpc': 'google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2',
  grpcurl: 'github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4',
} as const;

/** Everything that a Python client with gen/python needs (README): nothing from buf, and no generators. */
const PYTHON_PACKAGES = [
  'grpcio==1.85.1',
  'protobuf==7.36.2',
  'googleapis-common-protos==1.76.0',
  'typing_extensions==4.16.0',
];

export const GO_BIN = path.join(CACHE, 'go-bin');
export const GRPCURL = path.join(GO_BIN, 'grpcurl');
export const GO_CLIENT = path.join(CACHE, 'go-client/client');
export const PYTHON = path.join(CACHE, 'python/bin/python');
export const PYTHON_PATH = path.join(ROOT, 'gen/python');
export const PYTHON_STORY = path.join(ROOT, 'test/languages/python/story.py');
export const BUF = path.join(ROOT, 'node_modules/.bin/buf');

/** Contains the program `protoc` of the package grpcio-tools in its folder `bin`. */
const PROTOC_PACKAGE = 'grpcio-tools==1.85.1';
export const PROTOC_BIN = path.join(CACHE, 'protoc/bin');
/** The folder in which Cargo keeps compiled packages: in the cache of the user, so that a fresh checkout finds them. */
export const CARGO_TARGET = path.join(
  process.env.XDG_CACHE_HOME ?? path.join(os.homedir(), '.cache'),
  'anabranch/cargo-target',
);

/** Installs missing tools. A tool that cannot be installed fails the run, which names it. */
export async function installTools(): Promise<void> {
  await mkdir(GO_BIN, { recursive: true });
  await need('curl', ['--version'], 'install it with the package manager of the system');
  await need('go', ['version'], 'install Go 1.26 or later from https://go.dev/dl');
  const python = ['-c', 'import sys; assert sys.version_info >= (3, 10), sys.version'];
  await need('python3', python, 'install Python 3.10 or later');
  await need('cargo', ['--version'], 'install Rust 1.88 or later from https://rustup.rs');
  await need('mvn', ['--version'], 'install Maven and a JDK, 17 or later');
  await installPython();
  await installProtoc();
  for (const [name, source] of Object.entries(GO_PROGRAMS)) await installGoProgram(name, source);
  await buildGoClient();
}

async function need(program: string, args: string[], advice: string): Promise<void> {
  await run(program, args).catch((error: Error) => {
    throw new Error(`the tests in other languages need ${program}: ${advice} (${error.message})`);
  });
}

/** Does the work unless its stamp says that it was done with the same inputs. */
export async function once(stamp: string, reason: string, work: () => Promise<unknown>): Promise<void> {
  const file = path.join(CACHE, `${stamp}.stamp`);
  if (existsSync(file) && (await readFile(file, 'utf8')) === reason) return;
  await rm(file, { force: true });
  await work();
  await writeFile(file, reason);
}

/**
 * Makes a venv of a Python with these packages. Python compiles what a program imports; to compile all modules of the
 * packages here would take most of the time.
 */
export async function makeVenv(python: string, folder: string, packages: readonly string[]): Promise<void> {
  await rm(folder, { recursive: true, force: true });
  await run(python, ['-m', 'venv', folder], { minutes: 5 });
  const install = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-compile', ...packages];
  await run(path.join(folder, 'bin/python'), install, { minutes: 10 });
}

function installPython(): Promise<void> {
  return once('python', PYTHON_PACKAGES.join('\n'), async () => {
    const folder = path.join(CACHE, 'python');
    await rm(folder, { recursive: true, force: true });
    await run('python3', ['-m', 'venv', folder]);
    await run(PYTHON, ['-m', 'pip', 'install', '--quiet', '--no-deps', ...PYTHON_PACKAGES], { minutes: 5 });
  });
}

function installProtoc(): Promise<void> {
  return once('protoc', PROTOC_PACKAGE, async () => {
    const folder = path.dirname(PROTOC_BIN);
    await makeVenv('python3', folder, [PROTOC_PACKAGE]);
    const python = path.join(PROTOC_BIN, 'python');
    const program = `#!/bin/sh\nexec '${python}' -m grpc_tools.protoc "$@"\n`;
    await writeFile(path.join(PROTOC_BIN, 'protoc'), program, { mode: 0o755 });
  });
}

function installGoProgram(name: string, source: string): Promise<void> {
  return once(name, source, () => run('go', ['install', source], { env: { GOBIN: GO_BIN }, minutes: 10 }));
}

/**
 * Generates the stubs and builds the client, in a folder of the cache: only the sources of the Go client are committed.
 */
async function buildGoClient(): Promise<void> {
  const folder = path.dirname(GO_CLIENT);
  await mkdir(folder, { recursive: true });
  await cp(path.join(ROOT, 'test/languages/go'), folder, { recursive: true });
  const env = { PATH: `${GO_BIN}${path.delimiter}${process.env.PATH}` };
  const template = path.join(ROOT, 'test/languages/go/buf.gen.yaml');
  await run(BUF, ['generate', '--template', template, '--output', folder], { cwd: ROOT, env });
  await run('go', ['build', '-mod=readonly', '-o', GO_CLIENT, '.'], { cwd: folder, minutes: 10 });
}
