import { expect } from 'vitest';
import { Role } from '../../../gen/es/anabranch/v1/access_pb.js';
import type { AdminService } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import { StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { writeArchive } from '../../../src/archive/write.ts';
import { isSecret } from '../../../src/domain/access.ts';
import { ARCHIVE_FORMAT, ARCHIVE_VERSION, type ArchivePart } from '../../../src/domain/archive.ts';
import { sha256 } from '../../support/steps.ts';
import { NOBODY, type RpcClient, type Rpcs } from './scene.ts';

export const ADMIN_RPCS: Rpcs<typeof AdminService.method> = {
  getDatabaseStats: {
    requests: () => [[{}]],
    served: ([answer]) => {
      expect(answer!.trajectories).toBeGreaterThan(0n);
      expect(answer!.steps).toBeGreaterThanOrEqual(answer!.largestRuns[0]!.steps);
      expect(answer!.bytes).toBeGreaterThan(0n);
    },
    refused: () => ({}),
  },
  verifyDatabase: {
    requests: () => [[{}]],
    served: (answers) => {
      const last = answers.at(-1);
      expect(last?.doneSteps).toBe(last?.totalSteps);
      expect(answers.flatMap(({ faults }) => faults)).toEqual([]);
    },
    refused: () => ({}),
  },
  backupDatabase: {
    requests: () => [[{}]],
    served: (answers) => {
      const bytes = Buffer.concat(answers.map(({ chunk }) => chunk));
      expect(answers.at(-1)).toMatchObject({ totalBytes: BigInt(bytes.length), digest: sha256(bytes) });
    },
    refused: () => ({}),
  },
  vacuumDatabase: {
    requests: () => [[{}]],
    served: (answers) => expect(answers.at(-1)).toMatchObject({ freeBytes: 0n }),
    refused: () => ({}),
  },
  exportArchive: {
    requests: ({ runId, id }) => [[{ runId }], [{ trajectoryId: id }], [{}]],
    served: (answers) => expect(Buffer.concat(answers.map(({ chunk }) => chunk)).length).toBeGreaterThan(100),
    refused: () => ({
      RUN_NOT_FOUND: [{ runId: NOBODY }],
      TRAJECTORY_NOT_FOUND: [{ trajectoryId: NOBODY }],
    }),
  },
  importArchive: {
    requests: async () => {
      const lines = [
        { record: 'archive', format: ARCHIVE_FORMAT, version: ARCHIVE_VERSION, namespace: 'default' },
        END,
      ];
      return [[{ chunk: await archiveOf(lines) }]];
    },
    served: ([answer]) => expect(answer).toMatchObject({ trajectories: 0n, leftOutIds: [] }),
    refused: () => ({ ARCHIVE_INVALID: [{ chunk: Buffer.from('no archive') }] }),
  },
  createKey: {
    requests: () => [[{ name: 'trainer', role: Role.WORK, namespaces: ['a', 'b'], validFor: { seconds: 60n } }]],
    served: ([answer]) => {
      expect(answer).toMatchObject({ key: { name: 'trainer', role: Role.WORK, namespaces: ['a', 'b'] } });
      expect(isSecret(answer!.secret)).toBe(true);
      expect(answer!.key!.expireTime!.seconds - answer!.key!.createTime!.seconds).toBe(60n);
    },
    refused: () => ({ INVALID_REQUEST: [{ name: 'trainer', role: Role.WORK, namespaces: ['*', 'a'] }] }),
  },
  listKeys: {
    requests: async ({ admin }) => {
      await newKey(admin);
      await newKey(admin);
      const { nextPageToken: pageToken } = await admin.listKeys({ pageSize: 1 });
      return [[{ pageSize: 1, pageToken }]];
    },
    served: ([answer]) => expect(answer!.keys).toHaveLength(1),
    refused: () => ({ INVALID_PAGE_TOKEN: [{ pageToken: 'x' }] }),
  },
  revokeKey: {
    requests: async ({ admin }) => [[{ keyId: await newKey(admin) }]],
    served: ([answer]) => expect(answer!.key!.revokeTime).toBeDefined(),
    refused: () => ({ API_KEY_NOT_FOUND: [{ keyId: NOBODY }] }),
  },
  listNamespaces: {
    requests: () => [[{}]],
    served: ([answer]) => expect(answer!.namespaces).toContain('default'),
    refused: () => ({}),
  },
  deleteNamespace: {
    requests: () => [[{ name: 'nobody', cancelLive: true }]],
    served: ([answer]) => expect(answer).toMatchObject({ deletedRuns: 0n, deletedTrajectories: 0n }),
    refused: ({ runs, rollouts }) => ({
      RUN_ACTIVE: async () => {
        const { run } = await runs.createRun({ initialStatus: Status.RUNNING });
        const at = { runId: run!.id, kind: StageKind.TRAIN_STEP, number: 0n, initialStatus: Status.RUNNING };
        const { stage } = await runs.getOrCreateStage(at);
        await rollouts.createRollouts({ stageId: stage!.id, rollouts: [{ groupNumber: 0n, number: 0n }] });
        await rollouts.claimRollouts({ stageId: stage!.id, workerId: 'w' });
        return [{ name: 'default' }];
      },
    }),
  },
};

async function newKey(admin: RpcClient['admin']): Promise<string> {
  return (await admin.createKey({ name: 'reader', role: Role.READ })).key!.id;
}

const END = { record: 'end' };

async function archiveOf(records: readonly object[]): Promise<Uint8Array> {
  async function* parts(): AsyncGenerator<ArchivePart> {
    yield { kind: 'records', text: records.map((record) => `${JSON.stringify(record)}\n`).join('') };
  }
  const chunks: Uint8Array[] = [];
  for await (const chunk of writeArchive(parts())) chunks.push(chunk);
  return Buffer.concat(chunks);
}
