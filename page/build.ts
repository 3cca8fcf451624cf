/**
 * Builds the page into dist/page: each file compressed with gzip, under the name by which the server finds it. Part of
 * `npm ci` (`prepare`) and of `npm run build`. Skips with one line if Vite is not installed, as with `--omit=dev`.
 */
import { mkdir, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { gzipSync } from 'node:zlib';

const ROOT = path.resolve(import.meta.dirname, '..');
const TO = path.join(ROOT, 'dist/page');

const vite = await import('vite').catch(() => undefined);
if (vite === undefined) {
  process.stdout.write('The page is not built: Vite is not installed.\n');
} else {
  const began = performance.now();
  const { output } = await bundle(vite.build);
  await rm(TO, { recursive: true, force: true });
  let total = 0;
  for (const file of output) {
    const packed = gzipSync(file.type === 'chunk' ? file.code : file.source, { level: 9 });
    const target = path.join(TO, `${file.fileName}.gz`);
    await mkdir(path.dirname(target), { recursive: true });
    await writeFile(target, packed);
    total += packed.length;
  }
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  process.stdout.write(`The page: ${output.length} files, ${Math.ceil(total / 1024)} KiB gzipped, ${seconds} s\n`);
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
