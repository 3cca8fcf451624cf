import path from 'node:path';
import { rolldown } from 'rolldown';

const ROOT = path.resolve(import.meta.dirname, '..');
/** Threads that the service starts. */
const THREADS = [
  'src/store/sqlite/read_thread.ts',
  'src/store/sql/log/search/search_thread.ts',
  'src/store/sql/upkeep/archive/reading/archive_thread.ts',
];

/**
 * Bundles programs of this repository, and the threads that the service starts, into a folder: each as `NAME.js`, with
 * shared files. Needs half of the CPU time of the sources to start, which are a thousand files. Returns the paths of
 * all modules that are in it.
 */
export async function bundlePrograms(folder: string, programs: readonly string[]): Promise<readonly string[]> {
  const bundle = await rolldown({
    input: Object.fromEntries(
      [...programs, ...THREADS].map((each) => [path.basename(each, '.ts'), path.join(ROOT, each)]),
    ),
    platform: 'node',
    external: ['pg-native'],
    logLevel: 'silent',
  });
  const { output } = await bundle.write({ dir: folder, format: 'esm' });
  await bundle.close();
  return output.flatMap((file) => (file.type === 'chunk' ? file.moduleIds : []));
}
