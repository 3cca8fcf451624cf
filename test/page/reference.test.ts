import { fromJson } from '@bufbuild/protobuf';
import { beforeAll, describe, expect, it } from 'vitest';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { ErrorReasonSchema } from '../../gen/es/anabranch/v1/error_pb.js';
import { RetentionService } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { referenceHtml } from '../../page/reference/html.ts';
import { type Reference, readReference } from '../../page/reference/model.ts';
import { referenceText } from '../../page/reference/text.ts';
import { roleOf } from '../../src/rpc/gate.ts';
import { createRequestValidator } from '../../src/rpc/validate.ts';
import { expectedNames } from './reference_names.ts';

const SERVICES = [
  TrajectoryService,
  StateService,
  RunService,
  RolloutService,
  RetentionService,
  ServerService,
  AdminService,
];
const METHODS = SERVICES.flatMap((service) => service.methods);

let reference: Reference;
let html: string;
let text: string;
beforeAll(async () => {
  reference = await readReference();
  html = referenceHtml(reference, ['/assets/style.css']);
  text = referenceText(reference);
});

describe('the reference of the API', () => {
  it('has all services, in the order in which people need them', () => {
    expect(reference.services.map(({ name }) => name)).toEqual(SERVICES.map(({ name }) => name));
  });

  it('has every service, RPC, message, field, enum value and reason, each with an anchor', () => {
    const anchors = new Set([...html.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id ?? ''));
    expect(expectedNames(SERVICES).filter((name) => !anchors.has(name))).toEqual([]);
    const reasons = ErrorReasonSchema.values.map(({ localName }) => localName);
    expect(reasons.filter((reason) => !anchors.has(reason))).toEqual([]);
  });

  it('N2: has the role of every RPC', () => {
    const roles = new Map(reference.services.flatMap(({ rpcs }) => rpcs).map(({ name, role }) => [name, role]));
    expect(METHODS.map(({ name }) => roles.get(name))).toEqual(METHODS.map(roleOf));
    expect(html).toContain('role ADMIN');
    expect(text).toContain('- role: ADMIN');
  });

  it('has no anchor twice, and no link that leads nowhere', () => {
    const anchors = [...html.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id);
    expect(anchors.filter((id, at) => anchors.indexOf(id) !== at)).toEqual([]);
    const links = [...html.matchAll(/ href="#([^"]+)"/g)].map(([, id]) => id);
    expect(links.filter((id) => !anchors.includes(id))).toEqual([]);
  });

  it('is the same as text', () => {
    const names = expectedNames(SERVICES).map((name) => name.split('.').at(-1) ?? '');
    expect(names.filter((name) => !text.includes(name))).toEqual([]);
    for (const { rpcs } of reference.services) {
      for (const { comment, errors } of rpcs) for (const part of [comment, errors]) expect(text).toContain(part);
    }
  });

  it('has the comment of every RPC, message and field', () => {
    const bare: string[] = [];
    for (const { name, comment, rpcs } of reference.services) {
      if (comment === '') bare.push(name);
      for (const rpc of rpcs) {
        if (rpc.comment === '') bare.push(rpc.name);
        for (const message of [rpc.request, rpc.response, ...reference.messages]) {
          if (message.comment === '') bare.push(message.name);
          bare.push(
            ...message.fields.filter(({ comment }) => comment === '').map((field) => `${message.name}.${field.name}`),
          );
        }
      }
    }
    expect([...new Set(bare)]).toEqual([]);
  });

  it('runs no script, and has nothing inline that the policy forbids', () => {
    expect(html).not.toMatch(/<script|<style| style=| on\w+=|javascript:/);
  });

  it.each(METHODS.map((method) => [method.name, method] as const))(
    'has an example of %s that is valid',
    (name, method) => {
      const validator = createRequestValidator([]);
      const rpc = reference.services.flatMap(({ rpcs }) => rpcs).find((each) => each.name === name);
      const request = fromJson(method.input, JSON.parse(rpc?.example ?? ''));
      validator.check(method.input, request);
    },
  );
});
