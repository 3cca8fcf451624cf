import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { cp, mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { run } from './run.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
/** What is made from the sources of this checkout. */
const CACHE = path.join(ROOT, 'node_modules/.cache/anabranch-tools');
/** What other checkouts can use, too. */
const SHARED_CACHE = path.join(process.env.XDG_CACHE_HOME ?? path.join(os.homedir(), '.cache'), 'anabranch');

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
export const PYTHON = venvPython('python', 'python3', PYTHON_PACKAGES);
export const PYTHON_PATH = path.join(ROOT, 'gen/python');
export const PYTHON_STORY = path.join(ROOT, 'test/languages/python/story.py');
export const BUF = path.join(ROOT, 'node_modules/.bin/buf');

const PROTOC_PACKAGE = 'grpcio-tools==1.85.1';
/** Contains the program `protoc`, that of the package grpcio-tools. */
export const PROTOC_BIN = path.join(CACHE, 'protoc-bin');
/** The folder in which Cargo keeps compiled packages. */
export const CARGO_TARGET = path.join(SHARED_CACHE, 'cargo-target');

/** Installs missing tools. A tool that cannot be installed fails the run, which names it. */
export async function installTools(): Promise<void> {
  await mkdir(GO_BIN, { recursive: true });
  await need('curl', ['--version'], 'install it with the package manager of the system');
  await need('go', ['version'], 'install Go 1.26 or later from https://go.dev/dl');
  const python = ['-c', 'import sys; assert sys.version_info >= (3, 10), sys.version'];
  await need('python3', python, 'install Python 3.10 or later');
  await need('cargo', ['--version'], 'install Rust 1.88 or later from https://rustup.rs');
  await need('mvn', ['--version'], 'install Maven and a JDK, 17 or later');
  await ensureVenv('python', 'python3', PYTHON_PACKAGES);
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
async function once(stamp: string, reason: string, work: () => Promise<unknown>): Promise<void> {
  const file = path.join(CACHE, `${stamp}.stamp`);
  if (existsSync(file) && (await readFile(file, 'utf8')) === reason) return;
  await rm(file, { force: true });
  await work();
  await writeFile(file, reason);
}

/** Returns the Python of a venv with these packages, which `ensureVenv` makes. */
function venvPython(name: string, python: string, packages: readonly string[]): string {
  const version = execFileSync(python, ['--version'], { encoding: 'utf8' });
  const inputs = createHash('sha256')
    .update([python, version, ...packages].join('\n'))
    .digest('hex')
    .slice(0, 12);
  return path.join(SHARED_CACHE, `venv-${name}-${inputs}`, 'bin/python');
}

/**
 * Makes the venv unless some checkout has made it. Another one may make it at the same time: the first that is ready is
 * taken. Python compiles what a program imports; to compile all modules of the packages here would take most of the
 * time.
 */
export async function ensureVenv(name: string, python: string, packages: readonly string[]): Promise<string> {
  const program = venvPython(name, python, packages);
  if (existsSync(program)) return program;
  const folder = path.resolve(program, '../..');
  await mkdir(SHARED_CACHE, { recursive: true });
  const made = await mkdtemp(`${folder}-`);
  try {
    await run(python, ['-m', 'venv', made], { minutes: 5 });
    const install = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-compile', ...packages];
    await run(path.join(made, 'bin/python'), install, { minutes: 10 });
    await rename(made, folder).catch((error: unknown) => {
      if (!existsSync(program)) throw error;
    });
  } finally {
    await rm(made, { recursive: true, force: true });
  }
  return program;
}

async function installProtoc(): Promise<void> {
  const python = await ensureVenv('protoc', 'python3', [PROTOC_PACKAGE]);
  await mkdir(PROTOC_BIN, { recursive: true });
  const program = `#!/bin/sh\nexec '${python}' -m grpc_tools.protoc "$@"\n`;
  await writeFile(path.join(PROTOC_BIN, 'protoc'), program, { mode: 0o755 });
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
