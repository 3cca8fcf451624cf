/**
 * Bundles the service for tests that start it many times: `node test/support/bundle-server.ts FOLDER`. `main.js` in the
 * folder needs half of the CPU time of `src/main.ts` to start, which loads a thousand files. The folder is one below
 * `dist`, from where the service finds the page and package.json.
 */
import path from 'node:path';
import process from 'node:process';
import { rolldown } from 'rolldown';

const SRC = path.resolve(import.meta.dirname, '../../src');
const [folder] = process.argv.slice(2);
if (folder === undefined) throw new Error('Usage: node test/support/bundle-server.ts FOLDER');

const programs = ['main', 'store/sqlite/read_thread', 'store/sql/search/search_thread', 'stream/patches/patch_thread'];
const bundle = await rolldown({
  input: Object.fromEntries(programs.map((each) => [path.basename(each), path.join(SRC, `${each}.ts`)])),
  platform: 'node',
  external: ['pg-native'],
  logLevel: 'silent',
});
await bundle.write({ dir: folder, format: 'esm' });
