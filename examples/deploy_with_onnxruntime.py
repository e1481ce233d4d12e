"""Deployment: the file that own_model.py wrote becomes an ONNX file, which onnxruntime runs without torch and without bayesprune."""

import numpy as np
import onnxruntime
import torch

import bayesprune as bp
from bayesprune.data import load_mnist

network = bp.load("small.safetensors")  # no class, no pickle, nothing of the file is executed
images = load_mnist().test.images[:256] / 255
bp.export_onnx(network, images[:2], "small.onnx")  # compared with the network before it is written; any batch size

session = onnxruntime.InferenceSession("small.onnx", providers=["CPUExecutionProvider"])
(logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
with torch.no_grad():
    difference = np.abs(logits - network(images).numpy()).max()
print(f"{len(logits)} images, largest difference to torch {difference:.1e}")
print(bp.benchmark(network, images, batch_sizes=(1, 64), runtimes=("eager", "onnxruntime"), seconds=0.2))
