import process from 'node:process';
import { type Database, openStore } from '../../src/store/open.ts';

/** Collects states without references in a process of its own, until it is killed. */
const store = await openStore(JSON.parse(process.argv[2] ?? '') as Database, { logger: console });
process.stdout.write('collecting\n');
for (;;) await store.collectStates(0, 20);
