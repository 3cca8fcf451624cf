import { describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { codeOf, continuationOf } from '../../page/src/operations/code.ts';
import {
  labelsOf,
  rolloutOperations,
  runOperations,
  trajectoryOperations,
} from '../../page/src/operations/operation.ts';
import { roleOf } from '../../src/rpc/gate.ts';

const HERE = new URL('http://127.0.0.1:50051/');
const titles = (operations: readonly { readonly title: string }[]) => operations.map(({ title }) => title);

describe('operations', () => {
  it.each([
    [Status.PENDING, ['Cancel', 'Rename', 'Label']],
    [Status.RUNNING, ['Pause', 'Cancel', 'Rename', 'Label']],
    [Status.PAUSED, ['Resume', 'Cancel', 'Rename', 'Label']],
    [Status.COMPLETED, ['Rename', 'Label']],
  ])('of a run are those that its status allows (%i)', (status, expected) => {
    expect(titles(runOperations({ id: 'a', name: 'b', status }))).toEqual(expected);
  });

  it.each([
    [Status.PENDING, 0, ['Cancel', 'Label']],
    [Status.RUNNING, 1, ['Override verdict', 'Cancel', 'Label']],
    [Status.FAILED, 2, ['Override verdict', 'Retry', 'Label']],
    [Status.CANCELLED, 0, ['Retry', 'Label']],
  ])('of a rollout are those that its status allows (%i, attempt %i)', (status, attempt, expected) => {
    expect(titles(rolloutOperations({ id: 'a', number: 0n, status, attempt }))).toEqual(expected);
  });

  it('need the role that their method declares', () => {
    const services = { trajectories: TrajectoryService, runs: RunService, rollouts: RolloutService };
    const all = [
      ...trajectoryOperations({ id: 'a', name: 'b' }, 1),
      ...[Status.RUNNING, Status.PAUSED].flatMap((status) => runOperations({ id: 'a', name: 'b', status })),
      ...[Status.RUNNING, Status.FAILED].flatMap((status) =>
        rolloutOperations({ id: 'a', number: 0n, status, attempt: 1 }),
      ),
    ];
    for (const { needs, call } of all) {
      const { service, rpc } = call({ name: 'n', verdict: 'success', reason: 'r' });
      const method = services[service].methods.find(({ localName }) => localName === rpc);
      expect([rpc, Role[needs]]).toEqual([rpc, roleOf(method!)]);
    }
  });

  it('read labels from lines, and name the line that is none', () => {
    expect(labelsOf('lr=0.1\n\n  \nnote=a=b\nempty=')).toEqual({ lr: '0.1', note: 'a=b', empty: '' });
    expect(labelsOf('__proto__=x')).toEqual(Object.fromEntries([['__proto__', 'x']]));
    expect(() => labelsOf('lr')).toThrow('A label must be NAME=VALUE, got lr');
    expect(() => labelsOf('=1')).toThrow('NAME=VALUE');
    expect(() => labelsOf('a=1\na=2')).toThrow('The label a is given twice.');
  });
});

describe('calls as code', () => {
  it('are programs in TypeScript, Python and for a shell', () => {
    const [branch] = trajectoryOperations({ id: 'T', name: 'main' }, 200);
    const call = branch?.call({ name: "it's", labels: 'lr=0.1' });
    expect(call && codeOf(call, HERE)).toEqual({
      TypeScript: `import { connectClient } from 'anabranch/client';

const client = connectClient({ address: "127.0.0.1:50051" });
await client.trajectories.branchTrajectory({ trajectoryId: "T", stepNumber: 200n, name: "it's", labels: { lr: "0.1" } });
client.close();
`,
      Python: `import grpc
from anabranch.v1.trajectory_service_pb2 import BranchTrajectoryRequest
from anabranch.v1.trajectory_service_pb2_grpc import TrajectoryServiceStub

stub = TrajectoryServiceStub(grpc.insecure_channel("127.0.0.1:50051"))
stub.BranchTrajectory(BranchTrajectoryRequest(
    trajectory_id="T",
    step_number=200,
    name="it's",
    labels={"lr": "0.1"},
))
`,
      CLI:
        'curl -s http://127.0.0.1:50051/anabranch.v1.TrajectoryService/BranchTrajectory ' +
        `-H 'content-type: application/json' -d '{"trajectoryId": "T", "stepNumber": "200", "name": "it'\\''s", "labels": {"lr": "0.1"}}'\n`,
    });
  });

  it('write masks as each language does', () => {
    const label = trajectoryOperations({ id: 'T', name: '' }, 0).find(({ title }) => title === 'Label');
    const call = label?.call({ labels: '' });
    const { TypeScript, Python, CLI } = (call && codeOf(call, HERE)) ?? { TypeScript: '', Python: '', CLI: '' };
    expect(TypeScript).toContain('labels: {}, updateMask: { paths: ["labels"] }');
    expect(Python).toContain('update_mask={"paths": ["labels"]}');
    expect(CLI).toContain('"updateMask": "labels"');
  });

  it('escape what could hide what they do, and end no string', () => {
    const nasty = '"\'`$(rm)\\\n\u202e\u200b\u2028\ud800';
    const rename = runOperations({ id: 'R', name: '', status: Status.COMPLETED })[0];
    const call = rename?.call({ name: nasty });
    const code = (call && codeOf(call, HERE)) ?? { TypeScript: '', Python: '', CLI: '' };
    const literal = '"\\"\'`$(rm)\\\\\\n\\u202e\\u200b\\u2028\ufffd"';
    expect(code.TypeScript).toContain(`name: ${literal}`);
    expect(code.Python).toContain(`name=${literal}`);
    expect(code.CLI).toContain(literal.replace("'", "'\\''"));
    expect(JSON.parse(literal)).toBe(nasty.toWellFormed());
  });

  it('continue a branch from its next step', () => {
    const { TypeScript, Python, CLI } = continuationOf('B', 201n, HERE);
    expect(TypeScript).toContain('openWriter(client, { trajectoryId })');
    expect(Python).toContain('client.trajectory(id="B", resume="must")\ncheckpoint = branch.rewind()');
    expect(CLI).toContain('"stepNumber": "201"');
  });
});
