"""The steps of the FedCS protocol, one file each, named as the paper names them."""
