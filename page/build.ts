/**
 * Builds the page into dist/page: each file compressed with gzip, under the name by which the server finds it. Part of
 * `npm ci` (`prepare`) and of `npm run build`. Skips with one line if Vite is not installed, as with `--omit=dev`.
 */
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { gzipSync } from 'node:zlib';

const ROOT = path.resolve(import.meta.dirname, '..');
const TO = path.join(ROOT, 'dist/page');

/** Services first, then the messages that they share. */
const PROTOS = ['trajectory', 'state', 'run', 'rollout', 'server', 'admin'].map((noun) => `${noun}_service.proto`);

const INTRODUCTION = `# Anabranch

> The trajectory store for agents: every step durable, every state a branch point.

This is the reference of the API, as protos with comments. The server speaks gRPC, gRPC-Web and Connect on one port.
Every unary RPC is also a POST with JSON, and field names are in camel case there:

    curl -s http://127.0.0.1:50051/anabranch.v1.TrajectoryService/CreateTrajectory \\
      -H 'content-type: application/json' -d '{"name": "first"}'

Errors carry google.rpc.ErrorInfo with a reason of error.proto. Comments of RPCs name their reasons.
`;

const vite = await import('vite').catch(() => undefined);
if (vite === undefined) {
  process.stdout.write('The page is not built: Vite is not installed.\n');
} else {
  const began = performance.now();
  const { output } = await bundle(vite.build);
  await rm(TO, { recursive: true, force: true });
  let total = 0;
  for (const file of output) total += await pack(file.fileName, file.type === 'chunk' ? file.code : file.source);
  await pack('docs.txt', await reference());
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  process.stdout.write(`The page: ${output.length} files, ${Math.ceil(total / 1024)} KiB gzipped, ${seconds} s\n`);
}

/** Writes a file in its compressed form. Returns the number of bytes. */
async function pack(name: string, content: string | Uint8Array): Promise<number> {
  const packed = gzipSync(content, { level: 9 });
  const target = path.join(TO, `${name}.gz`);
  await mkdir(path.dirname(target), { recursive: true });
  await writeFile(target, packed);
  return packed.length;
}

/** Returns the reference of the API as text: all protos with their comments. */
async function reference(): Promise<string> {
  const folder = path.join(ROOT, 'gen/proto/anabranch/v1');
  const names = await readdir(folder);
  const ordered = [
    ...PROTOS.filter((name) => names.includes(name)),
    ...names.filter((name) => !PROTOS.includes(name)).sort(),
  ];
  const texts = await Promise.all(
    ordered.map(async (name) => `## ${name}\n\n${await readFile(path.join(folder, name), 'utf8')}`),
  );
  return `${INTRODUCTION}\n${texts.join('\n')}`;
}

async function bundle(build: typeof import('vite').build) {
  const built = await build({
    root: import.meta.dirname,
    configFile: false,
    logLevel: 'warn',
    // Descriptors without the validation rules, which only the server uses.
    resolve: { alias: [{ find: /^(?:\.\.\/)+gen\/es\/anabranch\//, replacement: `${ROOT}/gen/page/anabranch/` }] },
    oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
    build: {
      target: 'es2023',
      write: false,
      modulePreload: { polyfill: false },
      assetsInlineLimit: 0,
      rollupOptions: {
        input: { index: path.join(import.meta.dirname, 'index.html') },
      },
    },
  });
  if (Array.isArray(built) || !('output' in built)) throw new Error('Vite returned no bundle');
  return built;
}
