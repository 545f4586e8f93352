/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Which functions of the CUDA driver put work on a stream: what the counters behind a proof have to count. A name that
 * only asks, waits, or changes what belongs to the calling thread is quiet; whatever might do more (memory that changes
 * hands, code that is loaded, graphs that change, functions that only other drivers have) counts as work: a proof that is
 * missed costs time, one that is wrong costs the result. tests/unit/driver_calls.c holds the lists to the symbols of a
 * real library. Names in order, blanks between. */
#include "mk/driver_calls.h"
#include <string.h>

static const char *const quiet[] = {
    "cuArray3DGetDescriptor cuArray3DGetDescriptor_v2 cuArrayGetDescriptor cuArrayGetDescriptor_v2",
    "cuArrayGetMemoryRequirements cuArrayGetPlane cuArrayGetSparseProperties",
    "cuCheckpointProcessGetRestoreThreadId cuCheckpointProcessGetState cuCoredumpGetAttribute",
    "cuCoredumpGetAttributeGlobal cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent",
    "cuCtxGetDevResource cuCtxGetDevice cuCtxGetDevice_v2 cuCtxGetExecAffinity cuCtxGetFlags",
    "cuCtxGetId cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange cuCtxPopCurrent",
    "cuCtxPopCurrent_v2 cuCtxPushCurrent cuCtxPushCurrent_v2 cuCtxSetCurrent cuCtxSynchronize",
    "cuCtxSynchronize_v2 cuDeviceCanAccessPeer cuDeviceComputeCapability cuDeviceGet",
    "cuDeviceGetAttribute cuDeviceGetByPCIBusId cuDeviceGetCount cuDeviceGetDefaultMemPool",
    "cuDeviceGetDevResource cuDeviceGetExecAffinitySupport cuDeviceGetGraphMemAttribute",
    "cuDeviceGetHostAtomicCapabilities cuDeviceGetLuid cuDeviceGetMemPool cuDeviceGetName",
    "cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAtomicCapabilities cuDeviceGetP2PAttribute",
    "cuDeviceGetPCIBusId cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetUuid",
    "cuDeviceGetUuid_v2 cuDevicePrimaryCtxGetState cuDeviceTotalMem cuDeviceTotalMem_v2",
    "cuDriverGetVersion cuEventCreate cuEventDestroy cuEventDestroy_v2 cuEventElapsedTime",
    "cuEventElapsedTime_v2 cuEventQuery cuEventSynchronize cuFuncGetName cuFuncIsLoaded cuGetErrorName",
    "cuGetErrorString cuGraphBatchMemOpNodeGetParams cuGraphChildGraphNodeGetGraph",
    "cuGraphDebugDotPrint cuGraphEventRecordNodeGetEvent cuGraphEventWaitNodeGetEvent",
    "cuGraphExecGetFlags cuGraphExecGetId cuGraphExternalSemaphoresSignalNodeGetParams",
    "cuGraphExternalSemaphoresWaitNodeGetParams cuGraphGetEdges cuGraphGetEdges_v2 cuGraphGetId",
    "cuGraphGetNodes cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphKernelNodeGetAttribute",
    "cuGraphKernelNodeGetParams cuGraphKernelNodeGetParams_v2 cuGraphMemAllocNodeGetParams",
    "cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemsetNodeGetParams",
    "cuGraphNodeFindInClone cuGraphNodeGetContainingGraph cuGraphNodeGetDependencies",
    "cuGraphNodeGetDependencies_v2 cuGraphNodeGetDependentNodes cuGraphNodeGetDependentNodes_v2",
    "cuGraphNodeGetEnabled cuGraphNodeGetLocalId cuGraphNodeGetParams cuGraphNodeGetToolsId",
    "cuGraphNodeGetType cuGreenCtxGetDevResource cuGreenCtxGetId cuKernelGetName cuLogsCurrent",
    "cuMemGetAccess cuMemGetAddressRange cuMemGetAddressRange_v2 cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle cuMemGetDefaultMemPool cuMemGetHandleForAddressRange",
    "cuMemGetInfo cuMemGetInfo_v2 cuMemGetMemPool cuMemHostGetDevicePointer",
    "cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuMemPoolGetAccess cuMemPoolGetAttribute",
    "cuMemRangeGetAttribute cuMemRangeGetAttributes cuMipmappedArrayGetLevel",
    "cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties",
    "cuMulticastGetGranularity cuOccupancyAvailableDynamicSMemPerBlock",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyMaxPotentialClusterSize",
    "cuPointerGetAttribute cuPointerGetAttributes cuStreamGetAttribute cuStreamGetAttribute_ptsz",
    "cuStreamGetCaptureInfo cuStreamGetCaptureInfo_ptsz cuStreamGetCaptureInfo_v2",
    "cuStreamGetCaptureInfo_v2_ptsz cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo_v3_ptsz",
    "cuStreamGetCtx cuStreamGetCtx_ptsz cuStreamGetCtx_v2 cuStreamGetCtx_v2_ptsz",
    "cuStreamGetDevResource cuStreamGetDevResource_ptsz cuStreamGetDevice cuStreamGetDevice_ptsz",
    "cuStreamGetFlags cuStreamGetFlags_ptsz cuStreamGetGreenCtx cuStreamGetId cuStreamGetId_ptsz",
    "cuStreamGetPriority cuStreamGetPriority_ptsz cuStreamIsCapturing cuStreamIsCapturing_ptsz",
    "cuStreamQuery cuStreamQuery_ptsz cuStreamSynchronize cuStreamSynchronize_ptsz",
    "cuSurfObjectGetResourceDesc cuSurfRefGetArray cuTensorMapEncodeIm2col cuTensorMapEncodeIm2colWide",
    "cuTensorMapEncodeTiled cuTensorMapReplaceAddress cuTexObjectGetResourceDesc",
    "cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc cuTexRefGetAddress",
    "cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor",
    "cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy",
    "cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp",
    "cuTexRefGetMipmappedArray cuThreadExchangeStreamCaptureMode",
    NULL};

static const char *const enqueues[] = {
    "cuArray3DCreate cuArray3DCreate_v2 cuArrayCreate cuArrayCreate_v2 cuArrayDestroy",
    "cuCheckpointProcessCheckpoint cuCheckpointProcessLock cuCheckpointProcessRestore",
    "cuCheckpointProcessUnlock cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal cuCtxAttach",
    "cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy cuCtxDestroy_v2 cuCtxDetach",
    "cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuCtxFromGreenCtx cuCtxRecordEvent",
    "cuCtxResetPersistingL2Cache cuCtxSetCacheConfig cuCtxSetFlags cuCtxSetLimit",
    "cuCtxSetSharedMemConfig cuCtxWaitEvent cuDestroyExternalMemory cuDestroyExternalSemaphore",
    "cuDevResourceGenerateDesc cuDevSmResourceSplit cuDevSmResourceSplitByCount cuDeviceGraphMemTrim",
    "cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxSetFlags",
    "cuDevicePrimaryCtxSetFlags_v2 cuDeviceRegisterAsyncNotification cuDeviceSetGraphMemAttribute",
    "cuDeviceSetMemPool cuDeviceUnregisterAsyncNotification cuEGLApiInit",
    "cuEGLStreamConsumerAcquireFrame cuEGLStreamConsumerConnect cuEGLStreamConsumerConnectWithFlags",
    "cuEGLStreamConsumerDisconnect cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect",
    "cuEGLStreamProducerDisconnect cuEGLStreamProducerPresentFrame cuEGLStreamProducerReturnFrame",
    "cuEventCreateFromEGLSync cuEventCreateFromNVNSync cuEventRecord cuEventRecordWithFlags",
    "cuEventRecordWithFlags_ptsz cuEventRecord_ptsz cuExternalMemoryGetMappedBuffer",
    "cuExternalMemoryGetMappedMipmappedArray cuFlushGPUDirectRDMAWrites cuFuncGetAttribute",
    "cuFuncGetModule cuFuncGetParamCount cuFuncGetParamInfo cuFuncLoad cuFuncSetAttribute",
    "cuFuncSetBlockShape cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuFuncSetSharedSize",
    "cuGLCtxCreate cuGLCtxCreate_v2 cuGLGetDevices cuGLGetDevices_v2 cuGLInit cuGLMapBufferObject",
    "cuGLMapBufferObjectAsync cuGLMapBufferObjectAsync_v2 cuGLMapBufferObjectAsync_v2_ptsz",
    "cuGLMapBufferObject_v2 cuGLMapBufferObject_v2_ptds cuGLRegisterBufferObject",
    "cuGLSetBufferObjectMapFlags cuGLUnmapBufferObject cuGLUnmapBufferObjectAsync",
    "cuGLUnregisterBufferObject cuGraphAddBatchMemOpNode cuGraphAddChildGraphNode",
    "cuGraphAddDependencies cuGraphAddDependencies_v2 cuGraphAddEmptyNode cuGraphAddEventRecordNode",
    "cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode",
    "cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode cuGraphAddKernelNode",
    "cuGraphAddKernelNode_v2 cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddMemcpyNode",
    "cuGraphAddMemsetNode cuGraphAddNode cuGraphAddNode_v2 cuGraphBatchMemOpNodeSetParams cuGraphClone",
    "cuGraphConditionalHandleCreate cuGraphCreate cuGraphDestroy cuGraphDestroyNode",
    "cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeSetEvent cuGraphExecBatchMemOpNodeSetParams",
    "cuGraphExecChildGraphNodeSetParams cuGraphExecDestroy cuGraphExecEventRecordNodeSetEvent",
    "cuGraphExecEventWaitNodeSetEvent cuGraphExecExternalSemaphoresSignalNodeSetParams",
    "cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecHostNodeSetParams",
    "cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2 cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate cuGraphExecUpdate_v2",
    "cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeSetParams",
    "cuGraphHostNodeSetParams cuGraphInstantiate cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz cuGraphInstantiate_v2",
    "cuGraphKernelNodeCopyAttributes cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams",
    "cuGraphKernelNodeSetParams_v2 cuGraphLaunch cuGraphLaunch_ptsz cuGraphMemcpyNodeSetParams",
    "cuGraphMemsetNodeSetParams cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphReleaseUserObject",
    "cuGraphRemoveDependencies cuGraphRemoveDependencies_v2 cuGraphRetainUserObject cuGraphUpload",
    "cuGraphUpload_ptsz cuGraphicsEGLRegisterImage cuGraphicsGLRegisterBuffer",
    "cuGraphicsGLRegisterImage cuGraphicsMapResources cuGraphicsMapResources_ptsz",
    "cuGraphicsResourceGetMappedEglFrame cuGraphicsResourceGetMappedMipmappedArray",
    "cuGraphicsResourceGetMappedPointer cuGraphicsResourceGetMappedPointer_v2",
    "cuGraphicsResourceSetMapFlags cuGraphicsResourceSetMapFlags_v2",
    "cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources cuGraphicsUnmapResources_ptsz",
    "cuGraphicsUnregisterResource cuGraphicsVDPAURegisterOutputSurface",
    "cuGraphicsVDPAURegisterVideoSurface cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxRecordEvent",
    "cuGreenCtxStreamCreate cuGreenCtxWaitEvent cuImportExternalMemory cuImportExternalSemaphore",
    "cuInit cuIpcCloseMemHandle cuIpcGetEventHandle cuIpcGetMemHandle cuIpcOpenEventHandle",
    "cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 cuKernelGetAttribute cuKernelGetFunction",
    "cuKernelGetLibrary cuKernelGetParamCount cuKernelGetParamInfo cuKernelSetAttribute",
    "cuKernelSetCacheConfig cuLaunch cuLaunchCooperativeKernel cuLaunchCooperativeKernelMultiDevice",
    "cuLaunchCooperativeKernel_ptsz cuLaunchGrid cuLaunchGridAsync cuLaunchHostFunc",
    "cuLaunchHostFunc_ptsz cuLaunchKernel cuLaunchKernelEx cuLaunchKernelEx_ptsz cuLaunchKernel_ptsz",
    "cuLibraryEnumerateKernels cuLibraryGetGlobal cuLibraryGetKernel cuLibraryGetKernelCount",
    "cuLibraryGetManaged cuLibraryGetModule cuLibraryGetUnifiedFunction cuLibraryLoadData",
    "cuLibraryLoadFromFile cuLibraryUnload cuLinkAddData cuLinkAddData_v2 cuLinkAddFile",
    "cuLinkAddFile_v2 cuLinkComplete cuLinkCreate cuLinkCreate_v2 cuLinkDestroy cuLogsDumpToFile",
    "cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback cuMemAddressFree",
    "cuMemAddressReserve cuMemAdvise cuMemAdvise_v2 cuMemAlloc cuMemAllocAsync cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz cuMemAllocHost cuMemAllocHost_v2",
    "cuMemAllocManaged cuMemAllocPitch cuMemAllocPitch_v2 cuMemAlloc_v2 cuMemBatchDecompressAsync",
    "cuMemBatchDecompressAsync_ptsz cuMemCreate cuMemDiscardAndPrefetchBatchAsync",
    "cuMemDiscardAndPrefetchBatchAsync_ptsz cuMemDiscardBatchAsync cuMemDiscardBatchAsync_ptsz",
    "cuMemExportToShareableHandle cuMemFree cuMemFreeAsync cuMemFreeAsync_ptsz cuMemFreeHost",
    "cuMemFree_v2 cuMemHostAlloc cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister",
    "cuMemImportFromShareableHandle cuMemMap cuMemMapArrayAsync cuMemMapArrayAsync_ptsz",
    "cuMemPoolCreate cuMemPoolDestroy cuMemPoolExportPointer cuMemPoolExportToShareableHandle",
    "cuMemPoolImportFromShareableHandle cuMemPoolImportPointer cuMemPoolSetAccess",
    "cuMemPoolSetAttribute cuMemPoolTrimTo cuMemPrefetchAsync cuMemPrefetchAsync_ptsz",
    "cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz cuMemPrefetchBatchAsync",
    "cuMemPrefetchBatchAsync_ptsz cuMemRelease cuMemRetainAllocationHandle cuMemSetAccess",
    "cuMemSetMemPool cuMemUnmap cuMemcpy cuMemcpy2D cuMemcpy2DAsync cuMemcpy2DAsync_v2",
    "cuMemcpy2DAsync_v2_ptsz cuMemcpy2DUnaligned cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds",
    "cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy3D cuMemcpy3DAsync cuMemcpy3DAsync_v2",
    "cuMemcpy3DAsync_v2_ptsz cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz cuMemcpy3DBatchAsync_v2",
    "cuMemcpy3DBatchAsync_v2_ptsz cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz",
    "cuMemcpy3DPeer_ptds cuMemcpy3DWithAttributesAsync cuMemcpy3DWithAttributesAsync_ptsz",
    "cuMemcpy3D_v2 cuMemcpy3D_v2_ptds cuMemcpyAsync cuMemcpyAsync_ptsz cuMemcpyAtoA cuMemcpyAtoA_v2",
    "cuMemcpyAtoA_v2_ptds cuMemcpyAtoD cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds cuMemcpyAtoH",
    "cuMemcpyAtoHAsync cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz cuMemcpyAtoH_v2",
    "cuMemcpyAtoH_v2_ptds cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz cuMemcpyBatchAsync_v2",
    "cuMemcpyBatchAsync_v2_ptsz cuMemcpyDtoA cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds cuMemcpyDtoD",
    "cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz cuMemcpyDtoD_v2",
    "cuMemcpyDtoD_v2_ptds cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds cuMemcpyHtoA cuMemcpyHtoAAsync",
    "cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds cuMemcpyHtoD",
    "cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz cuMemcpyHtoD_v2",
    "cuMemcpyHtoD_v2_ptds cuMemcpyPeer cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz cuMemcpyPeer_ptds",
    "cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz cuMemcpy_ptds cuMemsetD16",
    "cuMemsetD16Async cuMemsetD16Async_ptsz cuMemsetD16_v2 cuMemsetD16_v2_ptds cuMemsetD2D16",
    "cuMemsetD2D16Async cuMemsetD2D16Async_ptsz cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds cuMemsetD2D32",
    "cuMemsetD2D32Async cuMemsetD2D32Async_ptsz cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds cuMemsetD2D8",
    "cuMemsetD2D8Async cuMemsetD2D8Async_ptsz cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds cuMemsetD32",
    "cuMemsetD32Async cuMemsetD32Async_ptsz cuMemsetD32_v2 cuMemsetD32_v2_ptds cuMemsetD8",
    "cuMemsetD8Async cuMemsetD8Async_ptsz cuMemsetD8_v2 cuMemsetD8_v2_ptds cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy cuModuleEnumerateFunctions cuModuleGetFunction cuModuleGetFunctionCount",
    "cuModuleGetGlobal cuModuleGetGlobal_v2 cuModuleGetLoadingMode cuModuleGetSurfRef",
    "cuModuleGetTexRef cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary",
    "cuModuleUnload cuMulticastAddDevice cuMulticastBindAddr cuMulticastBindAddr_v2 cuMulticastBindMem",
    "cuMulticastBindMem_v2 cuMulticastCreate cuMulticastUnbind cuParamSetSize cuParamSetTexRef",
    "cuParamSetf cuParamSeti cuParamSetv cuPointerSetAttribute cuProfilerInitialize cuProfilerStart",
    "cuProfilerStop cuSignalExternalSemaphoresAsync cuSignalExternalSemaphoresAsync_ptsz",
    "cuStreamAddCallback cuStreamAddCallback_ptsz cuStreamAttachMemAsync cuStreamAttachMemAsync_ptsz",
    "cuStreamBatchMemOp cuStreamBatchMemOp_ptsz cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz",
    "cuStreamBeginCapture cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz",
    "cuStreamBeginCapture_ptsz cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz",
    "cuStreamCopyAttributes cuStreamCopyAttributes_ptsz cuStreamCreate cuStreamCreateWithPriority",
    "cuStreamDestroy cuStreamDestroy_v2 cuStreamEndCapture cuStreamEndCapture_ptsz",
    "cuStreamSetAttribute cuStreamSetAttribute_ptsz cuStreamUpdateCaptureDependencies",
    "cuStreamUpdateCaptureDependencies_ptsz cuStreamUpdateCaptureDependencies_v2",
    "cuStreamUpdateCaptureDependencies_v2_ptsz cuStreamWaitEvent cuStreamWaitEvent_ptsz",
    "cuStreamWaitValue32 cuStreamWaitValue32_ptsz cuStreamWaitValue32_v2 cuStreamWaitValue32_v2_ptsz",
    "cuStreamWaitValue64 cuStreamWaitValue64_ptsz cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz",
    "cuStreamWriteValue32 cuStreamWriteValue32_ptsz cuStreamWriteValue32_v2",
    "cuStreamWriteValue32_v2_ptsz cuStreamWriteValue64 cuStreamWriteValue64_ptsz",
    "cuStreamWriteValue64_v2 cuStreamWriteValue64_v2_ptsz cuSurfObjectCreate cuSurfObjectDestroy",
    "cuSurfRefSetArray cuTexObjectCreate cuTexObjectDestroy cuTexRefCreate cuTexRefDestroy",
    "cuTexRefSetAddress cuTexRefSetAddress2D cuTexRefSetAddress2D_v2 cuTexRefSetAddress2D_v3",
    "cuTexRefSetAddressMode cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor",
    "cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy",
    "cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp",
    "cuTexRefSetMipmappedArray cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain",
    "cuVDPAUCtxCreate cuVDPAUCtxCreate_v2 cuVDPAUGetDevice cuWaitExternalSemaphoresAsync",
    "cuWaitExternalSemaphoresAsync_ptsz",
    NULL};

/* Walks the names of a list; false at its end. */
struct walk {
    const char *const *row;
    const char *name;
    size_t length;
};
static bool next_name(struct walk *w)
{
    w->name = w->name ? w->name + w->length : *w->row;
    while (*w->name == ' ')
        w->name++;
    if (!*w->name && !(w->name = *++w->row))
        return false;
    w->length = strcspn(w->name, " ");
    return true;
}

static bool has(const char *const *list, const char *name)
{
    const size_t want = strlen(name);
    struct walk w = {.row = list};
    while (next_name(&w))
        if (w.length == want && !memcmp(w.name, name, want))
            return true;
    return false;
}

enum mk_driver_call mk_driver_call(const char *name)
{
    if (!strcmp(name, "cuGetProcAddress") || !strcmp(name, "cuGetProcAddress_v2"))
        return MK_DRIVER_LOOKUP;
    if (!strcmp(name, "cuGetExportTable"))
        return MK_DRIVER_ENDS;
    if (has(quiet, name))
        return MK_DRIVER_QUIET;
    return has(enqueues, name) ? MK_DRIVER_ENQUEUES : MK_DRIVER_UNKNOWN;
}

bool mk_driver_call_name(size_t i, char *name, size_t bytes)
{
    struct walk lists[] = {{.row = quiet}, {.row = enqueues}};
    for (size_t list = 0; list < 2; list++)
        for (struct walk *w = &lists[list]; next_name(w);)
            if (!i--) {
                if (w->length >= bytes)
                    return false;
                memcpy(name, w->name, w->length);
                name[w->length] = '\0';
                return true;
            }
    return false;
}
