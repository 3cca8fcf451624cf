import { readFileSync } from 'node:fs';
import { createClient } from '@connectrpc/connect';
import { createConnectTransport } from '@connectrpc/connect-node';
import { expect, it } from 'vitest';
import { VERSION } from '../../gen/es/anabranch/v1/limits.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { startTestServer } from '../support/test-server.ts';

const UNITS: Readonly<Record<string, number>> = { KiB: 1024, MiB: 1024 ** 2 };

it('GetServerInfo returns the version of the package and every limit of docs/limitations.md', async () => {
  await using server = await startTestServer();
  const transport = createConnectTransport({ baseUrl: server.url, httpVersion: '1.1' });
  const { version, limits } = await createClient(ServerService, transport).getServerInfo({});
  expect(JSON.parse(read('package.json'))).toMatchObject({ version });
  expect(version, 'run `npm run generate`').toBe(VERSION);
  const pageOfLimits = [...read('docs/limitations.md').matchAll(/^\| `(\w+)` \| ([^|]+) \| .+ \|$/gmu)];
  expect(pageOfLimits.map(([, name, value = '']) => [name, sizeOf(value)])).toEqual(Object.entries(limits));
  expect(limits).toMatchObject(Object.fromEntries(Object.entries(LIMITS).map(([name, size]) => [name, BigInt(size)])));
});

it('GetServerInfo can be read with GET, and limits that are settings have the value of the server', async () => {
  await using server = await startTestServer({ flags: { maxConnections: '77', stateTtlHours: '5' } });
  const query = new URLSearchParams({ connect: 'v1', encoding: 'json', message: '{}' });
  const answer = await fetch(`${server.url}/anabranch.v1.ServerService/GetServerInfo?${query}`);
  expect(answer.status).toBe(200);
  expect(await answer.json()).toMatchObject({
    limits: { maxConnections: '77', stateTtlHours: '5', chunkBytes: '262144' },
  });
});

function read(path: string): string {
  return readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');
}

/** `1 MiB − 4 KiB` → 1044480n; `10,000` → 10000n. */
function sizeOf(text: string): bigint {
  const amounts = text.split('−').map((part) => {
    const [amount = '', unit = ''] = part.trim().replaceAll(',', '').split(' ');
    return BigInt(Number(amount) * (UNITS[unit] ?? 1));
  });
  return amounts.reduce((total, less) => total - less);
}
