/**
 * Serves the scripted streams of sending_cases.json to clients in other languages. Prints the addresses of the cases by
 * title, one JSON in a line. For each title that it reads from stdin, it prints what it has seen of that case.
 */
import { createInterface } from 'node:readline';
import { startCase, streamCases } from './stream_cases.ts';

const servers = new Map(
  await Promise.all(streamCases().map(async (each) => [each.title, await startCase(each)] as const)),
);
const print = (value: unknown) => process.stdout.write(`${JSON.stringify(value)}\n`);
print(Object.fromEntries([...servers].map(([title, { url }]) => [title, url])));
for await (const title of createInterface(process.stdin)) print(servers.get(title)?.seen());
await Promise.all([...servers.values()].map((server) => server.stop()));
