import { once } from 'node:events';
import { createServer } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { create } from '@bufbuild/protobuf';
import { connectNodeAdapter } from '@connectrpc/connect-node';
import { AppendStepsResponseSchema, TrajectoryService } from '../gen/es/anabranch/v1/trajectory_service_pb.js';

/** Starts the simplest possible Connect handler: it decodes and acknowledges every frame of an append stream. */
export async function startBareServer(): Promise<{ port: number; drain(): Promise<void> }> {
  const handler = connectNodeAdapter({
    routes: (router) => {
      router.service(TrajectoryService, {
        async *appendSteps(frames) {
          for await (const { open, steps } of frames) {
            if (open !== undefined) yield create(AppendStepsResponseSchema, { opened: { epoch: 1n } });
            const last = steps.at(-1);
            if (last !== undefined) {
              yield create(AppendStepsResponseSchema, { ack: { nextStepNumber: last.stepNumber + 1n } });
            }
          }
        },
      });
    },
  });
  const server = createServer(handler).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port, drain: async () => void server.close() };
}
