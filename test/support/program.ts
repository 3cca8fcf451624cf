import path from 'node:path';
import process from 'node:process';

const ROOT = path.resolve(import.meta.dirname, '../..');

/**
 * Returns the file to start for a program of this repository: from the folder that TEST_BUNDLE names
 * (test/support/bundle.ts), or, if it is not set, the source. That of another checkout has an absolute path.
 */
export function programFile(source: string): string {
  if (path.isAbsolute(source)) return source;
  const bundle = process.env.TEST_BUNDLE;
  return bundle === undefined ? path.join(ROOT, source) : path.join(bundle, `${path.basename(source, '.ts')}.js`);
}
