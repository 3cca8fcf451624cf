import { Code, ConnectError, createClient, type Transport } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { BadRequestSchema, ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { WIRES } from './wires.ts';

/** Some gRPC clients reject headers of more than 8 KiB with RESOURCE_EXHAUSTED, but not always. */
const CALLS = 5;

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());

/**
 * Each label has two violations, for key and value, with paths of about 230 bytes, which are about 700 when
 * percent-encoded.
 */
function badLabels(violations: number): Record<string, string> {
  const labels = Array.from({ length: violations / 2 }, (_, i) => [`${i}${'€'.repeat(100)}`, 'v'.repeat(257)]);
  return Object.fromEntries(labels);
}

describe.each(WIRES)('FM6: a refusal with many violations arrives complete over $name', ({ transport: open }) => {
  let transport: Transport;
  beforeAll(() => {
    transport = open(server.url);
  });
  afterAll(() => (transport as { close?: () => void }).close?.());

  it.each([20, 100])('%i violations', async (count) => {
    const { createTrajectory } = createClient(TrajectoryService, transport);
    for (let i = 0; i < CALLS; i += 1) {
      const error = await createTrajectory({ labels: badLabels(count) }).then(
        () => expect.fail('the call succeeded'),
        (thrown: unknown) => ConnectError.from(thrown),
      );
      expect(Code[error.code], error.message).toBe('InvalidArgument');
      const listed = error.findDetails(BadRequestSchema)[0]!.fieldViolations;
      const { reason, metadata } = error.findDetails(ErrorInfoSchema)[0]!;
      expect(reason).toBe('INVALID_REQUEST');
      expect(listed.length).toBeGreaterThan(0);
      expect(Number(metadata.violations_left_out)).toBe(count - listed.length);
      expect(error.rawMessage).toContain(`(${count - listed.length} more violations are not listed)`);
    }
  });
});
