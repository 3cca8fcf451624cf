import process from 'node:process';
import { type Database, openStore } from '../../src/store/open.ts';

/** Opens a store in a process of its own, which migrates its database, and closes it. */
const store = await openStore(JSON.parse(process.argv[2] ?? '') as Database, { logger: console });
await store.close();
