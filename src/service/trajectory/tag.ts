import { TagSchema, type Tag as WireTag } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { TrajectoryService } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { parseTagName } from '../../domain/ids.ts';
import type { Tag } from '../../store/contract/trajectory.ts';
import { pageByKey } from '../answer/page.ts';
import { sizerOf } from '../answer/size.ts';
import { required } from '../convert/required.ts';
import type { Methods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';
import { fromTag } from './messages.ts';

const tagBytes = sizerOf(TagSchema);

/** Tags of steps (B5). */
export const tagMethods: Methods<typeof TrajectoryService, 'setTag' | 'listTags' | 'deleteTag'> = {
  async setTag({ trajectoryId, name, stepNumber, expectedStepNumber }, { app, caller }) {
    const at = required(stepNumber, 'step_number');
    return { tag: fromTag(await app.store.setTag(caller.namespace, trajectoryId, name, at, expectedStepNumber)) };
  },

  /** Lists tags by name, in the order of bytes. */
  async listTags(request, { app, caller }) {
    const { trajectoryId, name } = request;
    const page = await pageByKey<Tag, WireTag, string>(pageArgsOf(caller, TrajectoryService.method.listTags, request), {
      fetch: (rows) => app.store.listTags(caller.namespace, trajectoryId, rows, name === '' ? undefined : name),
      keyOf: (tag) => tag.name,
      readKey: ([last = '']) => parseTagName(last, 'page_token'),
      show: fromTag,
      bytesOf: tagBytes,
    });
    return { tags: page.items, nextPageToken: page.nextPageToken };
  },

  async deleteTag({ trajectoryId, name }, { app, caller }) {
    await app.store.deleteTag(caller.namespace, trajectoryId, name);
    return {};
  },
};
