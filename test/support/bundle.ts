/**
 * Bundles programs for tests that start them many times: `node test/support/bundle.ts FOLDER PROGRAM.ts…`, with paths
 * below the repository. The folder is one below `dist`, from where the service finds the page and package.json.
 */
import process from 'node:process';
import { bundlePrograms } from '../../pip/bundle.ts';

const [folder, ...programs] = process.argv.slice(2);
if (folder === undefined) throw new Error('Usage: node test/support/bundle.ts FOLDER PROGRAM.ts…');

await bundlePrograms(folder, programs);
