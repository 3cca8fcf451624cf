/**
 * Builds the page and the reference of the API into dist/page: each file compressed with gzip, under the name by which
 * the server finds it. Part of `npm ci` (`prepare`) and of `npm run build`. Skips with one line if Vite is not
 * installed, as with `--omit=dev`.
 */
import { createHash } from 'node:crypto';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { gzipSync } from 'node:zlib';
import { referenceHtml } from './reference/html.ts';
import { readReference } from './reference/model.ts';
import { referenceText } from './reference/text.ts';

const ROOT = path.resolve(import.meta.dirname, '..');
const TO = path.join(ROOT, 'dist/page');

// Also in tests, which have another environment: they must see the page that people see.
process.env.NODE_ENV = 'production';
const vite = await import('vite').catch(() => undefined);
if (vite === undefined) {
  process.stdout.write('The page is not built: Vite is not installed.\n');
} else {
  const began = performance.now();
  const { output } = await bundle(vite.build, 'index.html');
  // Only their names change from build to build. Compiled sources of the page may lie beside them.
  await rm(path.join(TO, 'assets'), { recursive: true, force: true });
  let total = 0;
  for (const file of output) total += await pack(file.fileName, contentOf(file, output));
  const style = output.find(({ fileName }) => /^assets\/style-.*\.css$/.test(fileName))?.fileName;
  await pack('file/index.html', await filePage(vite.build));
  await packReference(style === undefined ? [] : [style]);
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  process.stdout.write(`The page: ${output.length} files, ${Math.ceil(total / 1024)} KiB gzipped, ${seconds} s\n`);
}

type Output = Awaited<ReturnType<typeof bundle>>['output'];

/**
 * Returns the content of a built file. The document begins with the first script, which Vite does not know as a part of
 * it.
 */
function contentOf(file: Output[number], output: Output): string | Uint8Array {
  if (file.type === 'chunk') return file.code;
  if (file.fileName !== 'index.html') return file.source;
  const early = output.find((each) => each.type === 'chunk' && each.isEntry && each.name === 'early');
  if (early === undefined) throw new Error('Vite returned no first script');
  const html = String(file.source);
  return html.replace(
    '<script ',
    `<script type="module" async crossorigin src="/${early.fileName}"></script>\n    <script `,
  );
}

/** Writes a file in its compressed form. Returns the number of bytes. */
async function pack(name: string, content: string | Uint8Array): Promise<number> {
  const packed = gzipSync(content, { level: 9 });
  const target = path.join(TO, `${name}.gz`);
  await mkdir(path.dirname(target), { recursive: true });
  await writeFile(target, packed);
  return packed.length;
}

/** Writes the reference of the API, as a page and as text. */
async function packReference(pageStyles: readonly string[]): Promise<void> {
  const reference = await readReference();
  const style = await readFile(path.join(import.meta.dirname, 'reference/style.css'));
  const styleName = `assets/reference-${createHash('sha256').update(style).digest('hex').slice(0, 8)}.css`;
  const styles = [...pageStyles, styleName].map((name) => `/${name}`);
  await pack(styleName, style);
  await pack('docs.html', referenceHtml(reference, styles));
  await pack('docs.txt', referenceText(reference));
}

/** Returns the page of `anabranch page`: one document with its script and style, and a place for what is shown. */
async function filePage(build: Build): Promise<string> {
  const { output } = await bundle(build, 'file.html');
  const script = output.find((file) => file.type === 'chunk');
  const style = output.find((file) => file.type === 'asset' && file.fileName.endsWith('.css'));
  if (script?.type !== 'chunk' || style?.type !== 'asset') throw new Error('Vite returned no script or no style');
  const code = script.code.replaceAll('</script', '<\\/script');
  const css = String(style.source);
  const hash = (text: string) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
  const policy = `default-src 'none'; script-src ${hash(code)}; style-src ${hash(css)}; img-src blob:; media-src blob:; base-uri 'none'; form-action 'none'`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Anabranch</title>
<style>${css}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page needs JavaScript.</noscript>
<!-- recorded -->
<script type="module">${code}</script>
</body>
</html>
`;
}

type Build = typeof import('vite').build;

async function bundle(build: Build, input: string) {
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
      // The scripts are few, and know no others that they must load first.
      modulePreload: false,
      assetsInlineLimit: 0,
      // Each further file costs more time than its bytes. The page in a file is one script and one style.
      cssCodeSplit: false,
      rolldownOptions: {
        input: {
          index: path.join(import.meta.dirname, input),
          ...(input === 'index.html' ? { early: path.join(import.meta.dirname, 'src/early.ts') } : {}),
        },
        output: input === 'index.html' ? {} : { codeSplitting: false },
      },
    },
  });
  if (Array.isArray(built) || !('output' in built)) throw new Error('Vite returned no bundle');
  return built;
}
