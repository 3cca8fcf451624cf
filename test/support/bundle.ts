/**
 * Bundles programs for tests that start them many times: `node test/support/bundle.ts FOLDER PROGRAM.ts…`, with paths
 * below the repository. A bundled program needs half of the CPU time of its source to start, which loads a thousand
 * files. The folder is one below `dist`, from where the service finds the page and package.json.
 */
import path from 'node:path';
import process from 'node:process';
import { rolldown } from 'rolldown';

const ROOT = path.resolve(import.meta.dirname, '../..');
/** Threads that the service starts. */
const THREADS = [
  'src/store/sqlite/read_thread.ts',
  'src/store/sql/log/search/search_thread.ts',
  'src/store/sql/upkeep/archive/reading/archive_thread.ts',
];

const [folder, ...programs] = process.argv.slice(2);
if (folder === undefined) throw new Error('Usage: node test/support/bundle.ts FOLDER PROGRAM.ts…');

const bundle = await rolldown({
  input: Object.fromEntries(
    [...programs, ...THREADS].map((each) => [path.basename(each, '.ts'), path.join(ROOT, each)]),
  ),
  platform: 'node',
  external: ['pg-native'],
  logLevel: 'silent',
});
await bundle.write({ dir: folder, format: 'esm' });
